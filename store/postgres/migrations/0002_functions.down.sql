-- The functions; all records stay, also records settled by SQL.
DROP FUNCTION "stet"."stet_digest", "stet"."stet_own", "stet"."stet_number", "stet"."stet_id", "stet"."stet_fingerprint", "stet"."stet_part", "stet"."stet_head", "stet"."stet_begin", "stet"."stet_begin_raw", "stet"."stet_claim", "stet"."stet_fenced", "stet"."stet_tell", "stet"."stet_wait_lock", "stet"."stet_fields", "stet"."stet_settle", "stet"."stet_settle_raw", "stet"."stet_release", "stet"."stet_sweep";
DELETE FROM "stet"."records_schema" WHERE version = 2;
