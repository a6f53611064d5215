package python

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/postgres"
)

// output runs a migrator and returns its standard output.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, err.(*exec.ExitError).Stderr) //nolint:errorlint,forcetypeassert // of Output
	}
	return string(out)
}

func inPythonMigrator(t *testing.T, args ...string) string {
	return output(t, command(t, "", append([]string{"-m", "stet", "migrate"}, args...)...))
}

func inGoMigrator(t *testing.T, args ...string) string {
	return output(t, exec.Command(rig.Stet(t), append([]string{"migrate"}, args...)...)) //nolint:gosec // a program of inGo
}

func TestMigrationsAreThoseOfGo(t *testing.T) {
	stettest.Migrations(t, filepath.Join("stet", "migrations"))
}

// TestPythonMigratorHasTheSQLOfGo compares the scripts of both, also for names that need quotes.
func TestPythonMigratorHasTheSQLOfGo(t *testing.T) {
	t.Parallel()
	for _, names := range [][2]string{{"stet", "records"}, {"other", "records"}, {"stet", "payments"}, {`a"b x'y`, "records"}, {"operations", "stet"}, {"records", "records_fence"}} {
		inGo := inGoMigrator(t, "up", "--show-sql", "--store-schema", names[0], "--store-table", names[1])
		inPython := inPythonMigrator(t, "sql", "--schema", names[0], "--table", names[1])
		if inGo != inPython || len(inGo) < 10_000 {
			t.Errorf("%q: %d bytes in Go, %d in Python, and they are not equal", names, len(inGo), len(inPython))
		}
	}
}

// TestGoAndPythonMigratorsAgree migrates by one and asks the other, also after some of the steps.
func TestGoAndPythonMigratorsAgree(t *testing.T) {
	t.Parallel()
	steps, err := postgres.Migrations(postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	same := func(url, state string, n int) {
		t.Helper()
		inGo, inPython := inGoMigrator(t, "status", "--store", url), inPythonMigrator(t, "status", "--dsn", url)
		if inGo != inPython || strings.Count(inGo, state) != n {
			t.Errorf("Go reports:\n%sPython:\n%swant %d steps %s", inGo, inPython, n, state)
		}
	}
	for applied := range len(steps) {
		url := rig.Postgres(t).Database(t)
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps[:applied] {
			if _, err := conn.Exec(t.Context(), step.Up, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		_ = conn.Close(t.Context())
		same(url, "pending", len(steps)-applied)
		if applied%2 == 0 {
			inPythonMigrator(t, "up", "--dsn", url)
			same(url, "applied", len(steps))
			inGoMigrator(t, "up", "--store", url)
		} else {
			inGoMigrator(t, "up", "--store", url)
			same(url, "applied", len(steps))
			if said := inPythonMigrator(t, "up", "--dsn", url); !strings.Contains(said, "already") {
				t.Errorf("Python migrates what Go has migrated: %s", said)
			}
		}
		same(url, "applied", len(steps))
	}
}
