// Package python tests the package for Python of this folder: its own tests run over a
// PostgreSQL of the rig, and a service of it shares keys with one in Go.
package python

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/postgres"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }

// command is a program of Debian's Python, which has the packages that are needed.
func command(t *testing.T, url string, args ...string) *exec.Cmd {
	t.Helper()
	if out, err := imports(); err != nil {
		t.Fatalf("%s lacks packages; run: make services (%v: %s)", debian, err, out)
	}
	return commandOf(t, debian, url, args...)
}

const debian = "/usr/bin/python3"

// imports imports the packages once: it takes a second.
var imports = sync.OnceValues(exec.Command(debian, "-c", "import asyncpg, fastapi, flask, psycopg, psycopg2, sqlalchemy, uvicorn").CombinedOutput)

// commandOf is a program of another Python.
func commandOf(t *testing.T, python, url string, args ...string) *exec.Cmd {
	t.Helper()
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	tests := filepath.Join(here, "tests")
	for _, folder := range []string{"stet", "tests", "tests/newest"} {
		if _, err := os.ReadDir(folder); err != nil { // go test keeps a result until what the test itself reads is another
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, args...)
	path := strings.Join([]string{here, tests, filepath.Join(tests, "newest")}, ":")
	cmd.Env = append(os.Environ(), "STET_TEST_DATABASE="+url, "STET_TEST_PROGRAM="+rig.Stet(t), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+path)
	return cmd
}

// ledger is a database with stet's tables and functions, and its URL.
func ledger(t *testing.T) (*postgres.Store, string) {
	t.Helper()
	url := rig.Postgres(t).Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	s, err := postgres.New(t.Context(), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, url
}

// TestPythonPackageKeepsItsPromises runs the tests in tests/, each class over a database of
// its own.
func TestPythonPackageKeepsItsPromises(t *testing.T) {
	t.Parallel()
	list := command(t, "", "-c", "import unittest; names = set(); walk = lambda s: [walk(t) for t in s] if hasattr(s, '__iter__') else names.add(type(t := s).__module__+'.'+type(t).__name__); "+
		"walk(unittest.defaultTestLoader.discover('tests')); print(*sorted(names))")
	out, err := list.Output()
	classes := strings.Fields(string(out))
	if err != nil || len(classes) < 29 || slices.Contains(classes, "unittest.loader._FailedTest") { // a module that cannot be imported
		t.Fatalf("%d classes, %v; want 29 at least, and each module: %s", len(classes), err, out)
	}
	modes := map[string]string{}
	for _, class := range classes {
		modes[class] = "functions"
		if module, _, _ := strings.Cut(class, "."); slices.Contains([]string{"test_services", "test_transactions", "test_unsettled", "test_operations", "test_names"}, module) {
			modes[class+"/statements"] = "statements"
		}
	}
	two := make(chan struct{}, 2) // at a time
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			class, _, _ := strings.Cut(name, "/")
			t.Parallel()
			two <- struct{}{}
			defer func() { <-two }()
			_, url := ledger(t)
			cmd := command(t, url, "-m", "unittest", class)
			cmd.Env = append(cmd.Env, "STET_TEST_MODE="+mode)
			if strings.HasSuffix(class, "BehindPgBouncer") {
				one := rig.PgBouncerOptions{Settings: map[string]string{"default_pool_size": "1"}}
				cmd.Env = append(cmd.Env, "STET_TEST_PGBOUNCER="+rig.Through(rig.PgBouncer(t, rig.Postgres(t), one).Addr(), url))
			}
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("\nOK\n")) || bytes.Contains(out, []byte("Ran 0 tests")) {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

// answer is a response, as far as a retry gets the same.
type answer struct {
	status      int
	body        string
	contentType string
	location    string
	problem     string
	retryAfter  string
	link        string
	replayed    bool
}

// target is the target of every request.
const target = "/payments?by=card&x=%C3%A9"

func send(t *testing.T, url, body string, keys []string, header ...string) (a answer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Account", "acct_1")
	req.Header["Idempotency-Key"] = keys
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	h := res.Header
	a = answer{status: res.StatusCode, body: string(b), contentType: h.Get("Content-Type"), location: h.Get("Location"),
		retryAfter: h.Get("Retry-After"), link: h.Get("Link"), replayed: h.Get("Idempotent-Replayed") == "true"}
	if a.contentType == "application/problem+json" {
		var doc struct{ Type string }
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		_, a.problem, _ = strings.Cut(doc.Type, "#")
	}
	return a
}

// inGo is the service of tests/service.py in Go.
func inGo(t *testing.T, s *postgres.Store) (url string) {
	t.Helper()
	te, err := stet.WithTx(stettest.Engine(t, s, stet.Options{}), s)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stethttp.NewTx(te, stethttp.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }, MaxBody: 1000})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) {
		var payment struct{ Amount, ID int }
		err := json.NewDecoder(r.Body).Decode(&payment)
		if err == nil {
			err = tx.QueryRow(r.Context(), "INSERT INTO payments (amount) VALUES ($1) RETURNING id", payment.Amount).Scan(&payment.ID)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", fmt.Sprintf("/payments/%d", payment.ID))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"payment": %d, "by": "Go"}`, payment.ID)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// inPython starts tests/service.py.
func inPython(t *testing.T, database, flavour string) (url string) {
	t.Helper()
	cmd := command(t, database, filepath.Join("tests", "service.py"), flavour)
	cmd.Env = append(cmd.Env, "STET_TEST_SERVICE_URL="+database)
	return rig.Launch(t, cmd).URL
}

// One key is one operation to both, and both refuse in the same words.
func TestGoAndPythonShareOneKey(t *testing.T) {
	s, database := ledger(t)
	if _, err := s.Pool().Exec(t.Context(), "CREATE TABLE payments (id bigserial PRIMARY KEY, amount integer NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	ours := inGo(t, s)
	for amount, flavour := range []string{"fastapi-psycopg-async", "flask-sqlalchemy"} {
		theirs := inPython(t, database, flavour)
		body := fmt.Sprintf(`{"amount": %d}`, amount)
		for _, way := range []struct{ name, first, then string }{{"Go first", ours, theirs}, {"Python first", theirs, ours}} {
			key := []string{`"` + flavour + strings.ReplaceAll(way.name, " ", "-") + `"`}
			first, again := send(t, way.first, body, key), send(t, way.then, body, key)
			first.replayed = true
			if first.status != http.StatusCreated || again != first || first.location == "" {
				t.Errorf("%s, %s: first %+v\nagain %+v", flavour, way.name, first, again)
			}
			a, b := send(t, ours, `{"amount": 7}`, key), send(t, theirs, `{"amount": 7}`, key)
			// Go's detail also says which part differs: stet_begin does not return the name of the stored operation.
			a.body = regexp.MustCompile(` It was of an operation with [^"]*?\)\.`).ReplaceAllString(a.body, "")
			if a != b || a.problem != "mismatch" {
				t.Errorf("%s: another request gets of Go %+v\nof Python %+v", flavour, a, b)
			}
		}
		var n int
		if err := s.Pool().QueryRow(t.Context(), "SELECT count(*) FROM payments WHERE amount = $1", amount).Scan(&n); err != nil || n != 2 {
			t.Errorf("%s: %d payments, %v; want 2", flavour, n, err)
		}
		sameRefusals(t, ours, theirs, strings.HasPrefix(flavour, "flask"))
		sameInFlight(t, s, ours, theirs)
	}
}

// sameRefusals sends requests that are refused. A server of WSGI joins header fields of one name.
func sameRefusals(t *testing.T, ours, theirs string, wsgi bool) {
	t.Helper()
	for name, c := range map[string]struct {
		keys   []string
		body   string
		header []string
	}{
		"key-missing":    {},
		"key-repeated":   {keys: []string{"a", "b"}},
		"key-invalid":    {keys: []string{`"a`}},
		"scope-missing":  {keys: []string{"a"}, header: []string{"X-Account", ""}},
		"scope-too-long": {keys: []string{"a"}, header: []string{"X-Account", strings.Repeat("x", 1025)}},
		"body-too-large": {keys: []string{"a"}, body: strings.Repeat("x", 1001)},
	} {
		if wsgi && name == "key-repeated" {
			continue
		}
		a, b := send(t, ours, c.body, c.keys, c.header...), send(t, theirs, c.body, c.keys, c.header...)
		if a != b || a.problem != name {
			t.Errorf("%s: Go answers %+v\nPython %+v", name, a, b)
		}
	}
}

// sameInFlight asks both while a transaction has the key.
func sameInFlight(t *testing.T, s *postgres.Store, ours, theirs string) {
	t.Helper()
	tx, err := s.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // no row is needed later
	print := stet.NewFingerprint([]byte("POST"), []byte(target), []byte("application/json"), nil, []byte("{}"))
	if _, err := tx.Exec(t.Context(), "SELECT stet.stet_begin('acct_1', 'at-work', $1)", print[:]); err != nil {
		t.Fatal(err)
	}
	key := []string{`"at-work"`}
	if a, b := send(t, ours, "{}", key), send(t, theirs, "{}", key); a != b || a.problem != "in-flight" {
		t.Errorf("at work: Go answers %+v\nPython %+v", a, b)
	}
}

// The README's code is tested in examples/python.
func TestProgramBehindTheSidecarIsTheExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, language := range map[string]string{"behind_sidecar.py": "python", "stet.yaml": "yaml"} {
		file, err := os.ReadFile(filepath.Join("..", "..", "examples", "python", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(readme, slices.Concat([]byte("```"+language+"\n"), file, []byte("```\n"))) {
			t.Errorf("what README.md has is not examples/python/%s", name)
		}
	}
}
