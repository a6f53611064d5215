package rolling

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/mysql"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

// migrates is the step of a child that migrates the tables and ends.
const migrates = -1

func migrate(ctx context.Context, kind, url string) error {
	switch kind {
	case "mysql":
		return mysql.Migrate(ctx, url)
	case "sqlite":
		s, err := sqlite.Open(ctx, url, sqlite.Options{})
		if err != nil {
			return err
		}
		return s.Close()
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return postgres.Migrate(ctx, pool, postgres.Options{})
}

// openSQL returns the service on a store of database/sql, in lease mode.
func openSQL(ctx context.Context, kind, url string, o stet.Options) (*service, error) {
	var s store.Store
	var db *sql.DB
	if kind == "mysql" {
		m, err := mysql.Open(ctx, url, mysql.Options{})
		if err != nil {
			return nil, err
		}
		s, db = m, m.DB()
	} else {
		f, err := sqlite.Open(ctx, url, sqlite.Options{})
		if err != nil {
			return nil, err
		}
		s, db = f, f.DB()
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS effects (k VARCHAR(64), v VARCHAR(64))"); err != nil {
		return nil, err
	}
	return inLease(s, o, func(ctx context.Context, key, value string) error {
		_, err := db.ExecContext(ctx, "INSERT INTO effects VALUES (?, ?)", key, value)
		return err
	}, func(ctx context.Context) (map[string]int, error) {
		n := make(map[string]int)
		rows, err := db.QueryContext(ctx, "SELECT k FROM effects")
		if err != nil {
			return n, err
		}
		defer rows.Close()
		for rows.Next() {
			var key string
			if err := rows.Scan(&key); err != nil {
				return n, err
			}
			n[key]++
		}
		return n, rows.Err()
	})
}

// planted are the changes that make the next version of the tables: in a file, the text that a
// pattern matches, and its replacement. V is the version, and W the one before.
var planted = map[string][2]string{
	"store/postgres/schema.go": {`const schemaVersion = \d+`, `const schemaVersion = V`},
	"store/mysql/schema.go": {`(?s)const schemaVersion = \d+(.*var schemaSteps = \[\]string\{.*?)\n\}\n`, "const schemaVersion = V$1\n\t`ALTER TABLE {records} ADD COLUMN planted INT`,\n" +
		"\t`ALTER TABLE {meta} ADD COLUMN min_compatible INT`,\n\t`UPDATE {meta} SET version = V, min_compatible = W`,\n}\n"},
	"store/sqlite/schema.go": {`var steps = \[\.\.\.\]string\{([^}]*)\}`, "var steps = [...]string{$1, `ALTER TABLE stet_records ADD COLUMN planted INTEGER;" +
		" ALTER TABLE stet_meta ADD COLUMN min_compatible INTEGER; UPDATE stet_meta SET schema = V, min_compatible = W`}"},
}

const plantedPostgres = `ALTER TABLE "stet"."records" ADD COLUMN planted text NOT NULL DEFAULT '';
ALTER TABLE "stet"."records_schema" ADD COLUMN IF NOT EXISTS min_compatible integer;
INSERT INTO "stet"."records_schema" (version, min_compatible) VALUES (V, W);
`

// newerProgram builds this program with one migration more on each store.
func newerProgram(t *testing.T) string {
	t.Helper()
	root := strings.TrimSpace(rig.Run(t, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/stet-go/stet"))
	dir, overlay := t.TempDir(), map[string]string{}
	numbered := func(text string, version int) string {
		return strings.NewReplacer("= V", fmt.Sprint("= ", version), "(V,", fmt.Sprintf("(%d,", version), "= W", fmt.Sprint("= ", version-1), " W)", fmt.Sprintf(" %d)", version-1)).Replace(text)
	}
	replace := func(file, text string) {
		t.Helper()
		path := filepath.Join(dir, strconv.Itoa(len(overlay)))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(root, file)] = path
	}
	for file, change := range planted {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		pattern := regexp.MustCompile(change[0])
		found := pattern.FindString(string(text))
		if found == "" {
			t.Fatalf("%s has no text that matches %s: correct planted", file, change[0])
		}
		version := strings.Count(found, ",") + 2 // of SQLite's steps
		if constant := regexp.MustCompile(`schemaVersion = (\d+)`).FindStringSubmatch(found); constant != nil {
			version, _ = strconv.Atoi(constant[1])
			version++
		}
		changed := pattern.ReplaceAllString(found, numbered(change[1], version))
		replace(file, strings.Replace(string(text), found, changed, 1))
		if strings.HasPrefix(file, "store/postgres/") {
			replace(fmt.Sprintf("store/postgres/migrations/%04d_planted.up.sql", version), numbered(plantedPostgres, version))
			replace(fmt.Sprintf("store/postgres/migrations/%04d_planted.down.sql", version), "")
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "newer")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	rig.Run(t, ".", nil, "go", "test", "-c", "-overlay", file, "-o", program, ".")
	return program
}

// fleet is a process of one program, which is killed and started again until stop is closed.
type fleet struct {
	t               *testing.T
	program, config string
	mu              sync.Mutex
	values          map[string]string // returned, by key
	lives           int               // processes that have returned an outcome
}

// run does not return while a process runs.
func (f *fleet) run(stop <-chan struct{}) {
	for ended := false; !ended; {
		ended = f.life(stop)
	}
}

// life runs a process until a moment after its first outcome.
func (f *fleet) life(stop <-chan struct{}) (ended bool) {
	cmd := exec.Command(f.program)
	cmd.Env = append(os.Environ(), childEnv+"="+f.config)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	stdin, err := cmd.StdinPipe() // it ends with this process
	if err != nil {
		f.t.Error(err)
		return true
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		f.t.Error(err)
		return true
	}
	first, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		out := bufio.NewReader(stdout)
		for n := 0; ; n++ {
			line, err := out.ReadString('\n')
			if err != nil {
				return // the last line may be cut
			}
			f.add(line, n == 0)
			if n == 0 {
				close(first)
			}
		}
	}()
	select {
	case <-first:
		select {
		case <-time.After(100*time.Millisecond + rand.N(700*time.Millisecond)):
		case <-stop:
			ended = true
		}
	case <-read: // it has ended
	case <-stop:
		ended = true
	}
	_ = cmd.Process.Kill()
	<-read
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		f.t.Errorf("a process of %s ended by itself: %v\n%s", f.program, err, errs.Bytes())
		return true
	}
	return ended
}

func (f *fleet) add(line string, first bool) {
	key, value, _ := fields(line)
	f.mu.Lock()
	defer f.mu.Unlock()
	if first {
		f.lives++
	}
	if was, ok := f.values[key]; ok && was != value {
		f.t.Errorf("key %s: %s was returned, and then %s", key, was, value)
	}
	f.values[key] = value
}

// counts returns how many processes and how many keys there were.
func (f *fleet) counts() (lives, keys int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lives, len(f.values)
}

// shared returns how many keys two programs have returned, and compares the outcomes.
func shared(t *testing.T, a, b *fleet) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, value := range a.values {
		other, ok := b.values[key]
		if ok {
			n++
		}
		if ok && other != value {
			t.Errorf("key %s: one program returned %s, and the other %s", key, value, other)
		}
	}
	return n
}

// until waits until a condition holds, or for two minutes.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds() && !t.Failed(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("after two minutes, this does not hold: %s", what)
			return
		}
	}
}

func TestOldProgramRunsBesideNewTables(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	newer := newerProgram(t)
	for _, kind := range []string{"postgres", "transactions", "mysql", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := tables(t, kind)
			before := &fleet{t: t, program: self, config: fmt.Sprint(kind, " ", url, " 0"), values: map[string]string{}}
			after := &fleet{t: t, program: newer, config: before.config, values: map[string]string{}}
			stop := make(chan struct{})
			var all sync.WaitGroup
			end := sync.OnceFunc(func() {
				close(stop)
				all.Wait()
			})
			t.Cleanup(end)
			start := func(f *fleet) { all.Go(func() { f.run(stop) }) }
			start(before)
			start(before)
			until(t, "two processes of the old program have returned outcomes", func() bool { lives, keys := before.counts(); return lives >= 2 && keys >= 20 })
			migrated(t, newer, kind, url)
			old, _ := before.counts()
			start(after)
			until(t, "both programs were killed and started again beside the new tables", func() bool {
				lives, _ := before.counts()
				others, _ := after.counts()
				return lives >= old+4 && others >= 3 && shared(t, before, after) >= 20
			})
			end()
			rolledBack(t, kind, url, before, after)
		})
	}
}

// migrated runs the newer program's migration.
func migrated(t *testing.T, newer, kind, url string) {
	t.Helper()
	cmd := exec.Command(newer)
	cmd.Env = append(os.Environ(), fmt.Sprint(childEnv, "=", kind, " ", url, " ", migrates))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the migration: %v\n%s", err, out)
	}
}

// rolledBack requires that the old program, which is this one, replay all outcomes of both, and
// that none had two effects.
func rolledBack(t *testing.T, kind, url string, before, after *fleet) {
	t.Helper()
	last, err := open(t.Context(), kind, url, 0)
	if err != nil {
		t.Fatalf("a process of the old program does not start: %v", err)
	}
	for _, f := range []*fleet{before, after} {
		for key, value := range f.values {
			if res, err := last.do(t.Context(), stet.Op{Scope: "a", Key: key}); err != nil || !res.Replayed || res.Value != value {
				t.Errorf("key %s: a last retry got %+v, %v; want %s", key, res, err, value)
			}
		}
	}
	effects, err := last.effects(t.Context())
	if err != nil || len(effects) < len(before.values) {
		t.Errorf("%d effects of %d outcomes, %v", len(effects), len(before.values), err)
	}
	for key, n := range effects {
		if n != 1 {
			t.Errorf("key %s: it had %d effects", key, n)
		}
	}
	t.Logf("%d processes and %d keys of the old program, %d and %d of the newer one, %d keys of both", before.lives, len(before.values), after.lives, len(after.values), shared(t, before, after))
}

// tables returns the address of empty tables of this program's version.
func tables(t *testing.T, kind string) string {
	t.Helper()
	var url string
	switch kind {
	case "mysql":
		url = rig.MariaDB(t).Database(t)
	case "sqlite":
		url = filepath.Join(t.TempDir(), "s.db")
	default:
		return place(t, kind)
	}
	if err := migrate(t.Context(), kind, url); err != nil {
		t.Fatal(err)
	}
	return url
}
