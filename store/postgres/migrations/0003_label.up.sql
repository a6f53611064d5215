-- What an operation is called, for people, verifiers and queues.
ALTER TABLE "stet"."records"
	ADD COLUMN class text COLLATE "C" NOT NULL DEFAULT '',
	ADD COLUMN name  text COLLATE "C" NOT NULL DEFAULT '',
	ADD COLUMN ref   text COLLATE "C" NOT NULL DEFAULT '';

-- What waits for a worker: of one name, longest first. A worker asks for the names
-- that it can run, so the others cost it nothing.
DROP INDEX "stet"."records_run";
CREATE INDEX "records_run" ON "stet"."records" (name, run_due) WHERE run_due IS NOT NULL;

COMMENT ON COLUMN "stet"."records".class IS 'the name of the policy that it runs under; '''' for the default one';
COMMENT ON COLUMN "stet"."records".name IS 'what the operation is: a route, a queue, the handler of accepted work';
COMMENT ON COLUMN "stet"."records".ref IS 'the service''s own reference, such as an order''s ID; encrypted if it begins with sealed:';

-- The same for people: digests in hexadecimal, states by name, bodies as text in which
-- bytes outside ASCII are escaped.
CREATE VIEW "stet"."operations" AS
SELECT encode(id, 'hex') AS id, encode(scope, 'hex') AS scope, class, name, ref,
	CASE state WHEN 1 THEN 'running' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed' WHEN 4 THEN 'retryable'
		WHEN 5 THEN 'unknown' WHEN 6 THEN 'accepted' END AS state,
	attempt, fence, gone, status, content_type, encode(body, 'escape') AS body, octet_length(body) AS body_bytes,
	substr(head, 1, 1) = '\x02' AS sealed, cancel_at IS NOT NULL AS cancelling,
	claimed_at, lease_until, run_due, settled_at, relay_due, expires_at, forget_at,
	encode(fingerprint, 'hex') AS fingerprint, encode(owner, 'hex') AS owner
FROM "stet"."records";
COMMENT ON VIEW "stet"."operations" IS 'idempotency records for people to read; operations of which only a tombstone is left are gone';

INSERT INTO "stet"."records_schema" (version) VALUES (3);
