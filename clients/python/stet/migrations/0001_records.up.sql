-- The records of stet. The quoted names are the defaults; other names take their
-- place when package postgres applies this file. Comments quote none of them: a
-- name may have a line break, which would end the comment.

-- Not CREATE SCHEMA IF NOT EXISTS: that needs the right to create schemas even
-- where this one is there already.
DO $stet$ BEGIN
	IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'stet') THEN
		CREATE SCHEMA "stet";
	END IF;
END $stet$;

-- Fences of all keys are drawn from one sequence, so that a fence grows with
-- every claim of a key even when its record was forgotten in the meantime. CACHE 1:
-- numbers that a session had set aside would come out of order.
CREATE SEQUENCE "stet"."records_fence" AS bigint CACHE 1 NO CYCLE;

-- Always empty. A transaction writes a row that refers to it, and removes the reference when
-- it settles. Without that its COMMIT fails, at the cost of a foreign key.
CREATE TABLE "stet"."records_empty" (yes boolean PRIMARY KEY CHECK (false));
COMMENT ON TABLE "stet"."records_empty" IS 'always empty: the foreign key to it refuses the commit of a transaction that has begun an operation and not settled it';

CREATE TABLE "stet"."records" (
	id          bytea       NOT NULL,
	scope       bytea       NOT NULL,
	fingerprint bytea       NOT NULL,
	owner       bytea       NOT NULL,
	fence       bigint      NOT NULL,
	claimed_at  timestamptz NOT NULL,
	lease_until timestamptz,
	settled_at  timestamptz,
	expires_at  timestamptz,
	forget_at   timestamptz,
	due_at      timestamptz,
	attempt     integer     NOT NULL,
	state       smallint    NOT NULL,
	gone        boolean     NOT NULL DEFAULT false,
	watched     boolean     NOT NULL DEFAULT false,
	status      smallint,
	content_type text COLLATE "C",
	head        bytea,
	body        bytea,
	class       text COLLATE "C" NOT NULL DEFAULT '',
	name        text COLLATE "C" NOT NULL DEFAULT '',
	ref         text COLLATE "C" NOT NULL DEFAULT '',
	run_due     timestamptz,
	relay_due   timestamptz,
	cancel_at   timestamptz,
	notes       bytea,
	work        bytea,
	outside     bytea,
	unsettled   boolean,
	open_state  smallint GENERATED ALWAYS AS (CASE WHEN expires_at IS NULL THEN state END) STORED,
	CONSTRAINT "records_pkey" PRIMARY KEY (id),
	CONSTRAINT "stet_unsettled" FOREIGN KEY (unsettled) REFERENCES "stet"."records_empty" (yes) DEFERRABLE INITIALLY DEFERRED
) WITH (
	-- Every row is updated once (settled) and removed once. Vacuum by share of
	-- the table would come too late when it is large.
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_analyze_scale_factor = 0.05
);

-- What the sweep walks, and nothing else does.
CREATE INDEX "records_due" ON "stet"."records" (due_at) WHERE due_at IS NOT NULL;

-- Unsettled records of one state, oldest claims first, for operators. A record that a transaction
-- settles is never in it.
CREATE INDEX "records_open" ON "stet"."records" (open_state, fence) WHERE open_state IS NOT NULL;

-- What waits for a worker, of one name, and messages to be sent, longest first.
CREATE INDEX "records_run" ON "stet"."records" (name, run_due) WHERE run_due IS NOT NULL;
CREATE INDEX "records_relay" ON "stet"."records" (relay_due) WHERE relay_due IS NOT NULL;

COMMENT ON TABLE "stet"."records" IS 'idempotency records: one row for each operation, named by (scope, key)';
COMMENT ON COLUMN "stet"."records".id IS 'SHA-256 of namespace, scope and key; what a client sends is never stored';
COMMENT ON COLUMN "stet"."records".scope IS 'SHA-256 of namespace and scope: the records of one tenant have it in common';
COMMENT ON COLUMN "stet"."records".fingerprint IS 'a version byte and SHA-256 of what the request asks for; another one under the same id is a mismatch';
COMMENT ON COLUMN "stet"."records".owner IS 'random id of the last claim, minted before it was sent; a claim whose reply was lost finds itself by it';
COMMENT ON COLUMN "stet"."records".fence IS 'number of the last claim; grows strictly with every claim of the id; every write compares it';
COMMENT ON COLUMN "stet"."records".claimed_at IS 'when it was last claimed';
COMMENT ON COLUMN "stet"."records".lease_until IS 'running: when the claim lapses unless it is renewed; else NULL';
COMMENT ON COLUMN "stet"."records".settled_at IS 'when it was settled, released or marked unknown; NULL while running';
COMMENT ON COLUMN "stet"."records".expires_at IS 'settled: when the result is no longer replayed; else NULL';
COMMENT ON COLUMN "stet"."records".forget_at IS 'settled, retryable: when the record counts as none and may be removed; else NULL';
COMMENT ON COLUMN "stet"."records".due_at IS 'when the sweep has something to do: the lease lapses, the result expires, or the record is forgotten; NULL: never (unknown)';
COMMENT ON COLUMN "stet"."records".attempt IS '1 for the first claim of the id, 2 for the next';
COMMENT ON COLUMN "stet"."records".state IS '1 running, 2 completed, 3 failed, 4 retryable, 5 unknown, 6 accepted';
COMMENT ON COLUMN "stet"."records".gone IS 'settled, and the result is not kept: too large, or expired';
COMMENT ON COLUMN "stet"."records".watched IS 'running: a caller in another process waits, so the end of the run is notified';
COMMENT ON COLUMN "stet"."records".status IS 'settled: as in HTTP; NULL for none, if gone, and if it is encrypted';
COMMENT ON COLUMN "stet"."records".content_type IS 'settled: the media type of the body; NULL like the status';
COMMENT ON COLUMN "stet"."records".head IS 'settled: what else an engine stores, with a checksum of all parts, or all of them encrypted; NULL if gone, and if it was settled by SQL';
COMMENT ON COLUMN "stet"."records".body IS 'settled: the result that is replayed, byte for byte; NULL if gone';

COMMENT ON COLUMN "stet"."records".run_due IS 'accepted: when it is due to run. Running, and may be repeated: when its lease expires. Else NULL';
COMMENT ON COLUMN "stet"."records".relay_due IS 'settled, with messages that were not sent yet: when they are due; else NULL';
COMMENT ON COLUMN "stet"."records".cancel_at IS 'accepted and taken: when its cancellation was asked for; else NULL';
COMMENT ON COLUMN "stet"."records".notes IS 'not settled: the checkpoints of its runs, such as the results of steps; else NULL';
COMMENT ON COLUMN "stet"."records".work IS 'accepted, and not settled yet: the work. Settled: the messages that were not sent yet. Else NULL';
COMMENT ON COLUMN "stet"."records".class IS 'the name of the policy that it runs under; '''' for the default one';
COMMENT ON COLUMN "stet"."records".name IS 'what the operation is: a route, a queue, the handler of accepted work';
COMMENT ON COLUMN "stet"."records".ref IS 'the service''s own reference, such as an order''s ID; encrypted if it begins with sealed:';
COMMENT ON COLUMN "stet"."records".outside IS 'the owner of a claim that a service settles, in one transaction with its writes; if it is the owner of the record, an expired run becomes retryable, not unknown';
COMMENT ON COLUMN "stet"."records".open_state IS 'the state while it is not settled; else NULL, also in a transaction that has not committed';
COMMENT ON COLUMN "stet"."records".unsettled IS 'true from begin to settle in one transaction, so that it cannot commit without; else NULL';

-- The same for people: digests in hexadecimal, states by name, bodies as text in which
-- bytes outside ASCII are escaped.
CREATE VIEW "stet"."operations" AS
SELECT encode(id, 'hex') AS id, encode(scope, 'hex') AS scope, class, name, ref,
	CASE state WHEN 1 THEN 'running' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed' WHEN 4 THEN 'retryable'
		WHEN 5 THEN 'unknown' WHEN 6 THEN 'accepted' END AS state,
	attempt, fence, gone, status, content_type, encode(body, 'escape') AS body, octet_length(body) AS body_bytes,
	substr(head, 1, 1) = '\x02' AS sealed, cancel_at IS NOT NULL AS cancelling,
	claimed_at, lease_until, run_due, settled_at, relay_due, expires_at, forget_at,
	encode(fingerprint, 'hex') AS fingerprint -- not the owner, which is a part of claims, which are secrets
FROM "stet"."records";
COMMENT ON VIEW "stet"."operations" IS 'idempotency records for people to read; operations of which only a tombstone is left are gone';

-- The version of these tables, which a program checks before it uses them.
CREATE TABLE "stet"."records_schema" (
	version    integer     PRIMARY KEY,
	applied_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE "stet"."records_schema" IS 'the migrations that were applied';
INSERT INTO "stet"."records_schema" (version) VALUES (1);
