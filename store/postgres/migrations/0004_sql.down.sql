-- The functions; all records stay, also records settled by SQL.
DROP TRIGGER "stet_unsettled" ON "stet"."records";
DROP FUNCTION "stet"."stet_digest", "stet"."stet_own", "stet"."stet_number", "stet"."stet_id", "stet"."stet_fingerprint", "stet"."stet_part", "stet"."stet_head", "stet"."stet_begin", "stet"."stet_claim", "stet"."stet_fenced", "stet"."stet_tell", "stet"."stet_fields", "stet"."stet_settle", "stet"."stet_release", "stet"."stet_sweep", "stet"."stet_unsettled";
ALTER TABLE "stet"."records" DROP COLUMN outside;
DELETE FROM "stet"."records_schema" WHERE version = 4;
