-- Default privileges (ALTER DEFAULT PRIVILEGES; hosted PostgreSQL has some) give roles rights on
-- each new table and function. Such a role could forge outcomes, or begin operations of others.
-- They are revoked here. Rights that were granted to other roles stay; grant again what such a
-- role is to have.
DO $stet$
DECLARE
	granted record;
BEGIN
	FOR granted IN
		SELECT DISTINCT o.kind, o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
		FROM (
			SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, CASE c.relkind WHEN 'S' THEN 'S' ELSE 'r' END AS type,
				c.oid::regclass::text AS name, c.relacl AS acl, c.relowner AS owner, c.relnamespace AS space
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = 'stet' AND c.relname IN ('records', 'records' || '_fence', 'records' || '_schema', 'records' || '_emitted') OR c.oid = '"stet"."operations"'::regclass
			UNION ALL
			SELECT 'FUNCTION', 'f', p.oid::regprocedure::text, p.proacl, p.proowner, p.pronamespace
			FROM pg_proc p WHERE p.oid IN ('"stet"."stet_begin"'::regproc, '"stet"."stet_settle"'::regproc, '"stet"."stet_release"'::regproc, '"stet"."stet_sweep"'::regproc,
				'"stet"."stet_tell"'::regproc, '"stet"."stet_unsettled"'::regproc, '"stet"."stet_emit"'::regproc, '"stet"."stet_unsent"'::regproc)
		) o, aclexplode(o.acl) a
		WHERE a.grantee <> o.owner AND EXISTS (
			SELECT FROM pg_default_acl d, aclexplode(d.defaclacl) e WHERE d.defaclrole = o.owner AND d.defaclobjtype::text = o.type AND d.defaclnamespace IN (0, o.space) AND e.grantee = a.grantee)
	LOOP
		EXECUTE format('REVOKE ALL ON %s %s FROM %s CASCADE', granted.kind, granted.name, granted.role);
	END LOOP;
END
$stet$;

INSERT INTO "stet"."records_schema" (version) VALUES (6);
