-- Loses operations that were accepted and have not ended, so that a client that sends one
-- again has it run, and messages that have not left.
DELETE FROM "stet"."records" WHERE state = 6;
UPDATE "stet"."records" SET forget_at = now() + interval '30 days', due_at = least(due_at, now() + interval '30 days')
	WHERE relay_due IS NOT NULL;
DROP INDEX "stet"."records_run";
DROP INDEX "stet"."records_relay";
ALTER TABLE "stet"."records" DROP COLUMN run_due, DROP COLUMN relay_due, DROP COLUMN cancel_at, DROP COLUMN notes, DROP COLUMN work;
COMMENT ON COLUMN "stet"."records".state IS '1 running, 2 completed, 3 failed, 4 retryable, 5 unknown';
DELETE FROM "stet"."records_schema" WHERE version = 2;
