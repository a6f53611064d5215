package postgres

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
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

// Those that write are granted to no role, and none looks up a name where its caller says.
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
	if err != nil || seen != len(functions) {
		t.Errorf("%d functions, %v; want %d", seen, err, len(functions))
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
		// What is granted since stays, also over another Migrate.
		execSQL(t, pool, "GRANT EXECUTE ON FUNCTION "+begin+" TO "+other)
		if err := Migrate(t.Context(), pool, o); err != nil {
			t.Fatal(err)
		}
		if _, err := app.Exec(t.Context(), "SELECT "+begin+"('shop', 'k')"); sqlState(err) == codeForbidden || err == nil {
			t.Errorf("by a role with EXECUTE: %v; want ST003", err)
		}
		mustClaim(t, s, request("k"))
	}
}

func TestMissingSchemaAndRightsSayWhatToDo(t *testing.T) {
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
