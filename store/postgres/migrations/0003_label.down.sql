-- Loses what operations are called.
DROP VIEW "stet"."operations";
DROP INDEX "stet"."records_run";
ALTER TABLE "stet"."records" DROP COLUMN class, DROP COLUMN name, DROP COLUMN ref;
CREATE INDEX "records_run" ON "stet"."records" (run_due) WHERE run_due IS NOT NULL;
DELETE FROM "stet"."records_schema" WHERE version = 3;
