-- Room for operations that are accepted now and run later, and for messages that
-- leave after the outcome that they come with. Few records have any of it, and the
-- indexes hold only those.
ALTER TABLE "stet"."records"
	ADD COLUMN run_due   timestamptz,
	ADD COLUMN relay_due timestamptz,
	ADD COLUMN cancel_at timestamptz,
	ADD COLUMN notes     bytea,
	ADD COLUMN work      bytea;

-- What waits for a worker, and what waits to be sent, longest first. Nothing else
-- walks them.
CREATE INDEX "records_run" ON "stet"."records" (run_due) WHERE run_due IS NOT NULL;
CREATE INDEX "records_relay" ON "stet"."records" (relay_due) WHERE relay_due IS NOT NULL;

COMMENT ON COLUMN "stet"."records".state IS '1 running, 2 completed, 3 failed, 4 retryable, 5 unknown, 6 accepted';
COMMENT ON COLUMN "stet"."records".run_due IS 'accepted: when it is due to run. Running, and may be repeated: when its lease expires. Else NULL';
COMMENT ON COLUMN "stet"."records".relay_due IS 'settled, with messages that were not sent yet: when they are due; else NULL';
COMMENT ON COLUMN "stet"."records".cancel_at IS 'accepted and taken: when its cancellation was asked for; else NULL';
COMMENT ON COLUMN "stet"."records".notes IS 'not settled: the checkpoints of its runs, such as the results of steps; else NULL';
COMMENT ON COLUMN "stet"."records".work IS 'accepted, and not settled yet: the work. Settled: the messages that were not sent yet. Else NULL';

INSERT INTO "stet"."records_schema" (version) VALUES (2);
