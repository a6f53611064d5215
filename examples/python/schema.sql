-- Once, as the owner of the database, after "stet migrate up".
CREATE TABLE payments (id bigserial PRIMARY KEY, amount integer NOT NULL);
CREATE ROLE shop LOGIN;
GRANT USAGE ON SCHEMA stet TO shop;
GRANT EXECUTE ON FUNCTION stet.stet_begin_raw, stet.stet_settle_raw TO shop;
GRANT INSERT, SELECT ON payments TO shop;
GRANT USAGE ON SEQUENCE payments_id_seq TO shop;
