package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet/store/postgres"
)

// sqlRights returns the roles beside the owner with a right to change records, by the functions of
// the SQL interface (true) or on the table itself (false).
const sqlRights = `WITH t AS (SELECT c.oid, c.relacl, c.relowner, c.relnamespace FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2)
	SELECT DISTINCT by, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END
	FROM (SELECT false AS by, relacl AS acl, relowner AS owner FROM t
		UNION ALL SELECT true, coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner FROM pg_proc p, t WHERE p.pronamespace = t.relnamespace AND p.prosecdef AND p.proname LIKE $3) o,
		aclexplode(o.acl) a
	WHERE a.grantee <> o.owner AND (by OR a.privilege_type <> 'SELECT') ORDER BY 1, 2`

// rights says which roles may change records.
func rights(ctx context.Context, s *postgres.Store, o postgres.Options) finding {
	const name = "rights"
	table, prefix := cmp.Or(o.Table, "records"), "stet"
	if o.Table != "" && o.Table != "records" {
		prefix = o.Table
	}
	pattern := strings.NewReplacer(`\`, `\\`, `_`, `\_`, `%`, `\%`).Replace(prefix+"_") + "%"
	roles := map[bool][]string{}
	rows, err := s.Pool().Query(ctx, sqlRights, cmp.Or(o.Schema, "stet"), table, pattern)
	if err == nil {
		var by bool
		var role string
		_, err = pgx.ForEachRow(rows, []any{&by, &role}, func() error { roles[by] = append(roles[by], role); return nil })
	}
	if err != nil {
		return bad(name, err.Error(), "may this role read pg_class and pg_proc?")
	}
	list := func(roles []string) string { return cmp.Or(strings.Join(roles, ", "), "only the owner") }
	found := fmt.Sprintf("the functions may be called by: %s; the table may be changed by: %s", list(roles[true]), list(roles[false]))
	for _, all := range roles {
		for _, role := range all {
			if role == "PUBLIC" {
				return bad(name, found, "every role can begin and settle operations: REVOKE these rights from PUBLIC, and grant them to the service's role")
			}
		}
	}
	return ok(name, "%s", found)
}
