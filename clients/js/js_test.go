// Package js tests the package for Node of this folder: its own tests run over a
// PostgreSQL of the rig, and beside a Go service on the same keys.
package js

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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

// needNode fails without Node and npm.
func needNode(t *testing.T) {
	t.Helper()
	const cure = "install Node 20 or newer and npm: on Debian, make services (packages nodejs and npm)"
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("there is no %s; %s", program, cure)
		}
	}
	version := strings.TrimSpace(rig.Run(t, ".", nil, "node", "--version"))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 20 {
		t.Fatalf("node is %s; %s", version, cure)
	}
}

// folder has the package and packages of npm. They are installed once; the tests that need them share the folder.
type folder struct {
	packages []string
	once     sync.Once
	path     string
}

// bare has the one package that is needed for operations: no other may be imported.
var bare = &folder{packages: []string{"pg@8.23.1"}}

// dir returns the folder, with the tests of Node in test.
func (f *folder) dir(t *testing.T) string {
	t.Helper()
	needNode(t)
	if _, err := os.ReadDir("src"); err != nil { // go test keeps a result until what the test itself reads is another
		t.Fatal(err)
	}
	f.once.Do(func() { f.path = install(t, f.packages) })
	if f.path == "" {
		t.Fatal("npm has not installed the packages; the first test that needs them says why")
	}
	return f.path
}

// install packs the package and installs it with packages, outside of this folder, which must not have node_modules.
func install(t *testing.T, packages []string) (dir string) {
	t.Helper()
	dir = rig.Folder(t, "node")
	quiet := []string{"--no-audit", "--no-fund", "--loglevel=error"}
	rig.Run(t, ".", nil, "npm", append([]string{"pack", "--pack-destination", dir}, quiet...)...)
	packed, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatalf("npm pack made %v, %v", packed, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	rig.Run(t, dir, nil, "npm", slices.Concat([]string{"install", "--no-package-lock", "--ignore-scripts", "--prefer-offline", packed[0]}, packages, quiet)...)
	if err := os.CopyFS(filepath.Join(dir, "test"), os.DirFS("test")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// schema has a service with the rights that README.md lists.
const schema = `CREATE TABLE charges (id bigserial PRIMARY KEY, key text NOT NULL, amount bigint NOT NULL);
DO $$ BEGIN CREATE ROLE shop LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$; -- it is the server's, not the database's
GRANT INSERT, SELECT ON charges TO shop;
GRANT USAGE ON SEQUENCE charges_id_seq TO shop;
CREATE TABLE payments (id bigserial PRIMARY KEY, amount bigint NOT NULL); -- of README.md's programs
GRANT INSERT, SELECT ON payments TO shop;
GRANT USAGE ON SEQUENCE payments_id_seq TO shop;
GRANT USAGE ON SCHEMA stet TO shop;
GRANT EXECUTE ON FUNCTION stet.stet_begin_raw, stet.stet_settle_raw TO shop;
GRANT EXECUTE ON FUNCTION stet.stet_emit, stet.stet_settle TO shop; -- only for messages
DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$; -- it may call no function of stet's
GRANT INSERT, SELECT ON charges TO stranger;
GRANT USAGE ON SEQUENCE charges_id_seq TO stranger;
REVOKE ALL ON FUNCTION stet.stet_begin_raw, stet.stet_settle_raw, stet.stet_settle, stet.stet_emit FROM PUBLIC`

// statements are the further rights of a service in the mode "statements".
const statements = `
GRANT INSERT, SELECT (id, fingerprint, fence, state, gone, expires_at, forget_at, status, content_type, head, body) ON stet.records TO shop;
GRANT USAGE ON SEQUENCE stet.records_fence TO shop;
`

// inModes runs a test in each mode of the package, with a database that has the rights for it.
func inModes(t *testing.T, test func(t *testing.T, pool *pgxpool.Pool, url string, env []string)) {
	for _, mode := range []string{"functions", "statements"} {
		t.Run(mode, func(t *testing.T) {
			pool, url := ledger(t)
			if mode == "statements" {
				if _, err := pool.Exec(t.Context(), statements); err != nil {
					t.Fatal(err)
				}
			}
			test(t, pool, url, []string{"STET_MODE=" + mode})
		})
	}
}

// ledger is a database with stet's tables and one of charges, and its URL.
func ledger(t *testing.T) (*pgxpool.Pool, string) {
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
	if _, err := pool.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	return pool, url
}

// payments is the service of the tests, in Go.
func payments(t *testing.T, pool *pgxpool.Pool) (url string) {
	t.Helper()
	s, err := postgres.New(t.Context(), pool, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	te, err := stet.WithTx(stettest.Engine(t, s, stet.Options{}), s)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stethttp.NewTx(te, stethttp.Options{Scope: func(r *http.Request) (string, error) { return r.Header.Get("X-Account"), nil }})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments", m.HandleTx(func(w http.ResponseWriter, r *http.Request, tx pgx.Tx) {
		var charge struct{ Amount, ID int64 }
		if err := json.NewDecoder(r.Body).Decode(&charge); err != nil {
			http.Error(w, "no JSON", http.StatusBadRequest)
			return
		}
		err := tx.QueryRow(r.Context(), "INSERT INTO charges (key, amount) VALUES ($1, $2) RETURNING id", r.Header.Get("Idempotency-Key"), charge.Amount).Scan(&charge.ID)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Location", fmt.Sprintf("/payments/%d", charge.ID))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"payment":"%d"}`, charge.ID)
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestNodePackageKeepsItsPromises(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	vectors, err := filepath.Abs(filepath.Join("..", "..", "docs", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	readme, err := filepath.Abs("README.md")
	if err != nil {
		t.Fatal(err)
	}
	inModes(t, func(t *testing.T, pool *pgxpool.Pool, url string, env []string) {
		env = append(env, "STET_DATABASE="+strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER="+url, "STET_VECTORS="+vectors, "STET_README="+readme, "STET_PROGRAM="+rig.Stet(t), "STET_GO_URL="+payments(t, pool), "STET_ACCEPTING="+accepting(t))
		if slices.Contains(env, "STET_MODE=functions") {
			nodeTests(t, dir, env, 340, filepath.Join("test", "*.test.js"))
		} else {
			nodeTests(t, dir, env, 220, filepath.Join("test", "*.test.js"), "accepted.test.js", "client.test.js", "core.test.js", "testing.test.js") // they need one mode
		}
	})
}

// PgBouncer 1.18 knows no prepared statements: one with a name fails on another connection of the server's.
func TestServiceBehindPgBouncerInTransactionModeKeepsItsPromises(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	few := rig.PgBouncerOptions{Settings: map[string]string{"default_pool_size": "5"}}
	inModes(t, func(t *testing.T, _ *pgxpool.Pool, url string, env []string) {
		bouncer := rig.PgBouncer(t, rig.Postgres(t), few)
		nodeTests(t, dir, append(env, "STET_DATABASE="+rig.Through(bouncer.Addr(), url), "STET_OWNER="+url), 4, filepath.Join("test", "bouncer", "*.test.js"))
	})
}

// The README's code is tested in examples/node, and by TestFormInABrowserChargesOnce.
func TestProgramsOfTheReadmeAreTheExamples(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, language := range map[string]string{"node/server.js": "js", "node/behind-sidecar.js": "js", "node/stet.yaml": "yaml", "browser/index.html": "html"} {
		file, err := os.ReadFile(filepath.Join("..", "..", "examples", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(readme, slices.Concat([]byte("```"+language+"\n"), file, []byte("```\n"))) {
			t.Errorf("what README.md has is not examples/%s", name)
		}
	}
}

// The published package has the files that it needs, and no files of the tests.
func TestPackedPackageHasItsFiles(t *testing.T) {
	needNode(t)
	out := rig.Run(t, ".", nil, "npm", "pack", "--dry-run", "--json", "--loglevel=error")
	for _, want := range []string{"LICENSE", "README.md", "migrations/0004_rights.up.sql", "src/cli.js", "src/index.js", "src/index.d.ts", "src/sidecar.js", "src/express.js", "src/express.d.ts", "src/fastify.js", "src/fastify.d.ts", "src/hono.js", "src/hono.d.ts", "src/koa.js", "src/koa.d.ts", "src/nest.js", "src/nest.d.ts", "src/next.js", "src/next.d.ts", "src/client.js", "src/client.d.ts", "src/journal.js", "src/testing.js", "src/testing.d.ts", "src/client/send.js"} {
		if !strings.Contains(out, `"`+want+`"`) {
			t.Errorf("the packed package lacks %s", want)
		}
	}
	if strings.Contains(out, `"test/`) || strings.Contains(out, `_test.go"`) {
		t.Errorf("the packed package has tests: %s", out)
	}
	ours, err := os.ReadFile("LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := os.ReadFile(filepath.Join("..", "..", "LICENSE")); err != nil || !bytes.Equal(ours, all) {
		t.Errorf("LICENSE differs from the project's: %v", err)
	}
}
