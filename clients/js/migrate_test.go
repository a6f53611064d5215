package js

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/postgres"
)

func TestMigrationsAreThoseOfGo(t *testing.T) { stettest.Migrations(t, "migrations") }

// Go and npx stet migrate read and write the same record of versions.
func TestMigrateWithoutGo_AgreesWithGo(t *testing.T) {
	t.Parallel()
	dir := bare.dir(t)
	npx := func(args ...string) string {
		return rig.Run(t, dir, nil, "npx", append([]string{"--no-install", "stet", "migrate"}, args...)...)
	}
	program := func(args ...string) string {
		return rig.Run(t, dir, nil, rig.Stet(t), append([]string{"migrate"}, args...)...)
	}
	odd := []string{"--store-schema", `sh'op "1"`, "--store-table", `or$1ders`}
	for _, names := range [][]string{{}, odd, {"--store-schema", "stet", "--store-table", "other"}} {
		if got, want := npx(append([]string{"sql"}, names...)...), program(append([]string{"up", "--show-sql"}, names...)...); got != want {
			t.Errorf("the SQL for %q differs from Go's:\n%s", names, got)
		}
	}
	for _, c := range []struct {
		names []string
		byGo  int // the steps that Go has applied before
	}{{nil, 0}, {nil, 2}, {odd, 0}, {odd, 5}} {
		pool, url := empty(t)
		in := append([]string{"--store", url}, c.names...)
		apply(t, pool, c.names, c.byGo)
		if out := npx(append([]string{"up"}, in...)...); strings.Contains(out, "already") != (c.byGo == 5) {
			t.Errorf("up after %d steps of Go: %s", c.byGo, out)
		}
		agree(t, npx(append([]string{"status"}, in...)...), program(append([]string{"status"}, in...)...))
		if out := program(append([]string{"up"}, in...)...); !strings.Contains(out, "nothing to do") {
			t.Errorf("Go after Node: %s", out)
		}
		s, err := postgres.New(t.Context(), pool, options(c.names))
		if err != nil {
			t.Fatalf("Go refuses the tables that Node has made after %d steps of Go: %v", c.byGo, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// agree compares two tables of states, in which each step is applied.
func agree(t *testing.T, got, want string) {
	t.Helper()
	if got != want || strings.Count(got, "applied") != 5 || !regexp.MustCompile(`(?m)^5 +history +applied +20\d\d-`).MatchString(got) {
		t.Errorf("npx stet migrate status:\n%swant as stet migrate status:\n%s", got, want)
	}
}

func options(names []string) (o postgres.Options) {
	if len(names) > 0 {
		o.Schema, o.Table = names[1], names[3]
	}
	return o
}

// empty is a database without tables, and its URL.
func empty(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	url := rig.Postgres(t).Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, url
}

// apply applies the first steps by Go.
func apply(t *testing.T, pool *pgxpool.Pool, names []string, n int) {
	t.Helper()
	steps, err := postgres.Migrations(options(names))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps[:n] {
		if _, err := pool.Exec(t.Context(), step.Up); err != nil {
			t.Fatal(err)
		}
	}
}
