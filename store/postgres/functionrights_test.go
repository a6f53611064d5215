package postgres

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A role that may create functions in the schema gives one the name of one of stet's, and
// types that fit its calls as well. It must not be called, for it would have the rights
// of who has created the tables.
func TestFunctionsCallNoFunctionOfTheSameName(t *testing.T) {
	t.Parallel()
	pool := database(t)
	s := open(t, pool, Options{})
	name := "service_" + strings.ReplaceAll(fresh(), "-", "")
	service := role(t, pool, name)
	execSQL(t, pool, "GRANT CREATE ON SCHEMA stet TO "+name)
	made := 0
	for _, f := range functions {
		if slices.Contains([]string{"begin", "emit", "settle", "release"}, f) {
			continue // which the service calls itself, as it pleases
		}
		for _, types := range []string{
			"", "bytea", "text", "bytea, bytea", "text, bytea", "text, text", "bytea, bytea, bytea", "text, bytea, bytea", "unknown, bytea", "bytea, boolean",
			"bytea, bytea, bytea, bytea", "text, bytea, bytea, bytea", "bytea, integer, boolean", "jsonb", "anyelement", "anyarray", "text, anyarray", "text, anyelement",
			"varchar, bytea", "varchar, bytea[]", "VARIADIC bytea[]", "text, VARIADIC bytea[]",
		} {
			_, err := service.Exec(t.Context(), "CREATE FUNCTION stet.stet_"+f+"("+types+") RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'called as %', current_user; END $$")
			if err == nil {
				made++
			}
		}
	}
	if made < 100 {
		t.Fatalf("the service has created %d functions; want many", made)
	}
	tx := beginTx(t, s)
	if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+name); err != nil {
		t.Fatal(err)
	}
	begin := "SELECT claim FROM stet.stet_begin('shop'::text, $1::text, NULL::bytea, ''::text, ''::text, ''::text, ''::text)"
	for _, end := range []string{"SELECT stet.stet_settle($1::text, 200, '{\"A\": \"b\"}'::jsonb)", "SELECT stet.stet_release($1::text)"} {
		var claim string
		if err := tx.QueryRow(t.Context(), begin, end).Scan(&claim); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT stet.stet_emit($1::text, 'a'::text, 'b'::bytea, 'c'::text, '{\"A\": \"b\"}'::jsonb)", claim); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), end, claim); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), begin, "SELECT stet.stet_settle($1::text, 200, '{\"A\": \"b\"}'::jsonb)"); err != nil { // replayed
		t.Fatal(err)
	}
	mustCommit(t, tx)
}

// Functions that write are granted to no role, and no function resolves names by the caller's search_path.
func TestFunctionsThatWriteAreNotEverybodys(t *testing.T) {
	t.Parallel()
	s := open(t, nil, Options{})
	rows, err := s.Pool().Query(t.Context(), `SELECT p.proname, p.prosecdef, coalesce(p.proconfig[1], ''),
		EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)
		FROM pg_proc p WHERE p.pronamespace = 'stet'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	var name, path string
	var definer, everybodys bool
	_, err = pgx.ForEachRow(rows, []any{&name, &definer, &path, &everybodys}, func() error {
		if seen++; definer && everybodys || path != "search_path=pg_catalog, pg_temp" {
			t.Errorf("%s runs with its owner's rights (%t), is everybody's (%t) and has %q; want a search_path of its own, and not the first two", name, definer, everybodys, path)
		}
		return nil
	})
	if want := len(functions) - 1; err != nil || seen != want { // unsettled is a constraint
		t.Errorf("%d functions, %v; want %d", seen, err, want)
	}
}

func TestDefaultPrivilegesGiveNoRights(t *testing.T) {
	t.Parallel()
	pool := database(t)
	open(t, pool, Options{})
	name, other := "anon_"+strings.ReplaceAll(fresh(), "-", ""), "app_"+strings.ReplaceAll(fresh(), "-", "")
	anon, app := role(t, pool, name), role(t, pool, other)
	execSQL(t, pool, "CREATE SCHEMA hosted; GRANT USAGE ON SCHEMA hosted TO "+name+", "+other)
	for _, what := range []string{"FUNCTIONS", "TABLES", "SEQUENCES"} {
		execSQL(t, pool, "ALTER DEFAULT PRIVILEGES IN SCHEMA hosted GRANT ALL ON "+what+" TO "+name)
	}
	for _, o := range []Options{{Schema: "hosted"}, {Schema: "hosted", Table: "it's \"ours\""}} {
		s := open(t, pool, o)
		n, err := newNames(o)
		if err != nil {
			t.Fatal(err)
		}
		begin, settle := pgx.Identifier{"hosted", "stet_begin"}.Sanitize(), pgx.Identifier{"hosted", "stet_settle"}.Sanitize()
		if o.Table != "" {
			begin, settle = pgx.Identifier{"hosted", o.Table + "_begin"}.Sanitize(), pgx.Identifier{"hosted", o.Table + "_settle"}.Sanitize()
		}
		for _, sql := range []string{"SELECT " + begin + "('victim', 'k')", "SELECT " + settle + "('x')", "SELECT count(*) FROM " + n.records, "UPDATE " + n.records + " SET body = 'x'",
			"SELECT nextval(" + literal(n.fence) + ")", "SELECT count(*) FROM " + pgx.Identifier{"hosted", n.view}.Sanitize(), "DELETE FROM " + n.meta} {
			if _, err := anon.Exec(t.Context(), sql); sqlState(err) != codeForbidden {
				t.Errorf("%s, by a role of default privileges: %v", sql, err)
			}
		}
		// Later grants stay, also after another Migrate.
		execSQL(t, pool, "GRANT EXECUTE ON FUNCTION "+begin+" TO "+other)
		if err := Migrate(t.Context(), pool, o); err != nil {
			t.Fatal(err)
		}
		if _, err := app.Exec(t.Context(), "SELECT "+begin+"('shop', 'k')"); sqlState(err) == codeForbidden || err == nil {
			t.Errorf("by a role with EXECUTE: %v; want 23503", err)
		}
		mustClaim(t, s, request("k"))
	}
}

// beforeRights returns a pool to a database with the migrations before number 4. It creates the
// roles, executes defaults, migrates, and executes grants. The names of the roles get a suffix, for
// which $ stands in SQL; suffixed replaces it.
func beforeRights(t *testing.T, roles []string, defaults, grants string) (pool *pgxpool.Pool, suffixed func(string) string) {
	t.Helper()
	pool = database(t)
	suffix := "_" + strings.ReplaceAll(fresh(), "-", "")
	suffixed = func(sql string) string { return strings.ReplaceAll(sql, "$", suffix) }
	execSQL(t, pool, "CREATE SCHEMA stet; CREATE SCHEMA elsewhere")
	for _, name := range roles {
		name += suffix
		execSQL(t, pool, "CREATE ROLE "+name)
		t.Cleanup(func() { execSQL(t, pool, "DROP OWNED BY "+name+" CASCADE; DROP ROLE "+name) })
		execSQL(t, pool, "GRANT USAGE ON SCHEMA stet TO "+name)
	}
	execSQL(t, pool, suffixed(defaults))
	steps, err := Migrations(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps[:3] {
		execSQL(t, pool, step.Up)
	}
	execSQL(t, pool, suffixed(grants))
	return pool, suffixed
}

func TestMigration4_KeepsGrantedRights(t *testing.T) {
	t.Parallel()
	roles := []string{"reader", "global", "writer", "columns", "grantor", "outsider", "stranger", "caller", "callergrantor", "callee", "drawer", "resetter"}
	pool, suffixed := beforeRights(t, roles, `
		ALTER DEFAULT PRIVILEGES IN SCHEMA stet GRANT SELECT ON TABLES TO reader$, writer$, columns$, grantor$;
		ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO global$;
		ALTER DEFAULT PRIVILEGES IN SCHEMA stet GRANT INSERT ON TABLES TO global$;
		ALTER DEFAULT PRIVILEGES IN SCHEMA elsewhere GRANT SELECT ON TABLES TO outsider$;
		ALTER DEFAULT PRIVILEGES IN SCHEMA stet GRANT EXECUTE ON FUNCTIONS TO caller$, callergrantor$, stranger$;
		ALTER DEFAULT PRIVILEGES IN SCHEMA stet GRANT USAGE ON SEQUENCES TO drawer$, resetter$`, `
		GRANT UPDATE ON stet.records TO writer$;
		GRANT UPDATE (body) ON stet.records TO columns$;
		GRANT SELECT ON stet.records TO grantor$ WITH GRANT OPTION;
		GRANT SELECT ON stet.records TO outsider$, stranger$;
		GRANT EXECUTE ON FUNCTION stet.stet_begin TO callee$;
		GRANT EXECUTE ON FUNCTION stet.stet_begin TO callergrantor$ WITH GRANT OPTION;
		GRANT UPDATE ON SEQUENCE stet.records_fence TO resetter$`)
	begin := "stet.stet_begin(text, text, bytea, text, text, text, text)"
	rights := []struct {
		role, kind, name, right string
		kept                    bool
	}{
		{"reader$", "table", "stet.records", "SELECT", false},
		{"reader$", "table", "stet.operations", "SELECT", false},
		{"global$", "table", "stet.records", "SELECT", false},
		{"global$", "table", "stet.records", "INSERT", false},
		{"writer$", "table", "stet.records", "SELECT", true},
		{"writer$", "table", "stet.records", "UPDATE", true},
		{"writer$", "table", "stet.records_emitted", "SELECT", false}, // nothing else was granted there
		{"columns$", "table", "stet.records", "SELECT", true},
		{"columns$", "any_column", "stet.records", "UPDATE", true},
		{"columns$", "table", "stet.operations", "SELECT", false},
		{"grantor$", "table", "stet.records", "SELECT WITH GRANT OPTION", true},
		{"outsider$", "table", "stet.records", "SELECT", true},
		{"stranger$", "table", "stet.records", "SELECT", true},
		{"stranger$", "function", begin, "EXECUTE", false},
		{"caller$", "function", begin, "EXECUTE", false},
		{"callergrantor$", "function", begin, "EXECUTE", true},
		{"callergrantor$", "function", "stet.stet_release(text, interval)", "EXECUTE", false},
		{"callee$", "function", begin, "EXECUTE", true},
		{"drawer$", "sequence", "stet.records_fence", "USAGE", false},
		{"resetter$", "sequence", "stet.records_fence", "USAGE", true},
	}
	check := func(when string, want func(kept bool) bool) {
		t.Helper()
		for _, r := range rights {
			var has bool
			err := pool.QueryRow(t.Context(), "SELECT has_"+r.kind+"_privilege($1::text, $2::text, $3::text)", suffixed(r.role), r.name, r.right).Scan(&has)
			if err != nil || has != want(r.kept) {
				t.Errorf("%s: %s has %s on %s: %t, %v", when, r.role, r.right, r.name, has, err)
			}
		}
	}
	check("before", func(bool) bool { return true })
	if err := Migrate(t.Context(), pool, Options{}); err != nil {
		t.Fatal(err)
	}
	check("after", func(kept bool) bool { return kept })
}

// A role whose default privileges have the grant option has granted its rights to another one.
func TestMigration4_RevokesDependentGrants(t *testing.T) {
	t.Parallel()
	pool, suffixed := beforeRights(t, []string{"anon", "friend"}, `
		ALTER DEFAULT PRIVILEGES IN SCHEMA stet GRANT ALL ON TABLES TO anon$ WITH GRANT OPTION;
		ALTER DEFAULT PRIVILEGES IN SCHEMA stet GRANT ALL ON FUNCTIONS TO anon$ WITH GRANT OPTION`, `
		SET ROLE anon$;
		GRANT SELECT ON stet.records TO friend$;
		GRANT EXECUTE ON FUNCTION stet.stet_release TO friend$;
		RESET ROLE`)
	if err := Migrate(t.Context(), pool, Options{}); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"anon$", "friend$"} {
		var reads, releases bool
		err := pool.QueryRow(t.Context(), "SELECT has_table_privilege($1::text, 'stet.records', 'SELECT'), has_function_privilege($1::text, 'stet.stet_release(text, interval)', 'EXECUTE')", suffixed(role)).
			Scan(&reads, &releases)
		if err != nil || reads || releases {
			t.Errorf("%s may read: %t, release: %t, %v; want neither", role, reads, releases, err)
		}
	}
}

func TestMissingSchemaAndRightsErrorsNameTheCommand(t *testing.T) {
	t.Parallel()
	pool := database(t)
	says := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %q", err, want)
		}
	}
	_, err := New(t.Context(), pool, Options{})
	says(err, "stet migrate up")
	open(t, pool, Options{})
	name := "poor_" + strings.ReplaceAll(fresh(), "-", "")
	poor := role(t, pool, name)
	_, err = New(t.Context(), poor, Options{})
	says(err, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA")
	if sqlState(err) != codeForbidden {
		t.Errorf("the server's error is not in %v", err)
	}
	execSQL(t, pool, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA stet TO "+name+"; GRANT USAGE ON ALL SEQUENCES IN SCHEMA stet TO "+name)
	s, err := New(t.Context(), poor, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mustClaim(t, s, request("k"))
	execSQL(t, pool, "DROP TABLE stet.records CASCADE")
	_, err = s.Claim(t.Context(), request("other"))
	says(err, "stet migrate up")
}
