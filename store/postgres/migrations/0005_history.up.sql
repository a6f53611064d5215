-- What went wrong with operations. Most have no entry. The data is that of an engine: JSON with a
-- checksum, or encrypted.
CREATE TABLE "stet"."records_history" (
	id      bytea       NOT NULL REFERENCES "stet"."records" (id) ON DELETE CASCADE,
	seq     bigint      GENERATED ALWAYS AS IDENTITY,
	fence   bigint      NOT NULL,
	attempt integer     NOT NULL,
	at      timestamptz NOT NULL DEFAULT statement_timestamp(),
	data    bytea       NOT NULL,
	PRIMARY KEY (id, seq)
);
COMMENT ON TABLE "stet"."records_history" IS 'what went wrong with operations, at most 16 entries of each; they are deleted with the record';

-- A role that writes records writes their history. Rights that default privileges have given to
-- others are revoked.
DO $stet$
DECLARE
	granted record;
BEGIN
	FOR granted IN
		SELECT c.oid::regclass::text AS name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, aclexplode(c.relacl) a
		WHERE n.nspname = 'stet' AND c.relname = 'records' || '_history' AND a.grantee <> c.relowner GROUP BY c.oid, a.grantee
	LOOP
		EXECUTE format('REVOKE ALL ON TABLE %s FROM %s CASCADE', granted.name, granted.role);
	END LOOP;
	FOR granted IN
		SELECT h.oid::regclass::text AS name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class h ON h.relnamespace = n.oid AND h.relname = 'records' || '_history',
			aclexplode(c.relacl) a
		WHERE n.nspname = 'stet' AND c.relname = 'records' AND a.grantee <> c.relowner GROUP BY h.oid, a.grantee
		HAVING bool_or(a.privilege_type = 'INSERT') AND bool_or(a.privilege_type = 'UPDATE')
	LOOP
		EXECUTE format('GRANT SELECT, INSERT, DELETE ON TABLE %s TO %s', granted.name, granted.role);
	END LOOP;
END
$stet$;

INSERT INTO "stet"."records_schema" (version) VALUES (5);
