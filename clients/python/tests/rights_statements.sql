GRANT SELECT, INSERT ON stet.records TO shop;
GRANT USAGE ON SEQUENCE stet.records_fence TO shop;
