-- Removes every record: operations may run again afterwards. The schema stays,
-- because other tables may be in it.
DROP VIEW "stet"."operations";
DROP TABLE "stet"."records";
DROP TABLE "stet"."records_empty";
DROP SEQUENCE "stet"."records_fence";
DROP TABLE "stet"."records_schema";
