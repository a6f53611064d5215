-- Default privileges (ALTER DEFAULT PRIVILEGES; hosted PostgreSQL has some) give roles rights on
-- each new table and function. Such a role could forge outcomes, or begin operations of others.
-- Its rights are revoked here. A role that has any other right on a table or a function was granted
-- it on purpose: all of its rights there stay. A right with GRANT OPTION that the default lacks, and
-- a right on a column, are other rights.
DO $stet$
DECLARE
	granted record;
BEGIN
	FOR granted IN
		SELECT o.kind, o.name, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS role
		FROM (
			SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, CASE c.relkind WHEN 'S' THEN 'S' ELSE 'r' END AS type,
				c.oid::regclass::text AS name, c.relacl AS acl, c.relowner AS owner, c.relnamespace AS space, c.oid AS columns_of
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = 'stet' AND c.relname IN ('records', 'records' || '_fence', 'records' || '_schema', 'records' || '_emitted', 'records' || '_empty') OR c.oid = '"stet"."operations"'::regclass
			UNION ALL
			SELECT 'FUNCTION', 'f', p.oid::regprocedure::text, p.proacl, p.proowner, p.pronamespace, NULL
			FROM pg_proc p WHERE p.oid IN ('"stet"."stet_begin"'::regproc, '"stet"."stet_begin_raw"'::regproc, '"stet"."stet_settle_raw"'::regproc, '"stet"."stet_settle"'::regproc, '"stet"."stet_release"'::regproc, '"stet"."stet_sweep"'::regproc,
				'"stet"."stet_tell"'::regproc, '"stet"."stet_emit"'::regproc, '"stet"."stet_unsent"'::regproc)
		) o, aclexplode(o.acl) a
		WHERE a.grantee <> o.owner AND NOT EXISTS (
			SELECT FROM pg_attribute t, aclexplode(t.attacl) e WHERE t.attrelid = o.columns_of AND e.grantee = a.grantee)
		GROUP BY o.kind, o.name, a.grantee
		HAVING bool_and(EXISTS (
			SELECT FROM pg_default_acl d, aclexplode(d.defaclacl) e
			WHERE d.defaclrole = o.owner AND d.defaclobjtype::text = o.type AND d.defaclnamespace IN (0, o.space)
				AND e.grantee = a.grantee AND e.privilege_type = a.privilege_type AND e.is_grantable >= a.is_grantable))
	LOOP
		-- CASCADE: such a role may have granted its rights to others.
		EXECUTE format('REVOKE ALL ON %s %s FROM %s CASCADE', granted.kind, granted.name, granted.role);
	END LOOP;
END
$stet$;

INSERT INTO "stet"."records_schema" (version) VALUES (4);
