GRANT USAGE ON SCHEMA stet TO shop;
GRANT EXECUTE ON FUNCTION stet.stet_begin_raw, stet.stet_settle_raw TO shop;
GRANT EXECUTE ON FUNCTION stet.stet_emit, stet.stet_settle TO shop; -- only if it emits messages
