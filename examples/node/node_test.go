// Package node tests the service of this folder.
package node

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }

const schema = "CREATE TABLE payments (id bigserial PRIMARY KEY, account text NOT NULL, amount integer NOT NULL)"

// install copies the services to a folder with their imports, and more packages.
func install(t *testing.T, more ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	version := strings.TrimSpace(rig.Run(t, ".", nil, "node", "--version"))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < 20 {
		t.Fatalf("this example needs Node 20 or newer, and node is %s: make services", version)
	}
	rig.Run(t, filepath.Join("..", "..", "clients", "js"), nil, "npm", "pack", "--pack-destination", dir, "--loglevel=error")
	packed, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatalf("npm pack made %v, %v", packed, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private": true, "type": "module"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"server.js", "behind-sidecar.js", "cards.js", "orders.js", "orders-postgres.js", "orders.html"} {
		program, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), program, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rig.Run(t, dir, nil, "npm", append([]string{"install", "--no-package-lock", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error",
		packed[0], "express@5.3.0", "pg@8.23.1"}, more...)...)
	return dir
}

// serve starts a service, and ends it with the test or before.
func serve(t *testing.T, dir, program, database string) (url string, kill func()) {
	t.Helper()
	cmd := exec.Command("node", program)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "DATABASE_URL="+database, "PORT=0")
	p := rig.Launch(t, cmd)
	return p.URL, p.Kill
}

func pay(t *testing.T, url, key, body string) (status int, replayed, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/payments", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Account", "acct_1")
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	w, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, w.Header.Get("Idempotent-Replayed"), w.Header.Get("Location") + " " + string(b)
}

// shop is a database with the tables, and its URL.
func shop(t *testing.T) (db *pgxpool.Pool, database string) {
	t.Helper()
	database = rig.Postgres(t).Database(t)
	db, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if err := postgres.Migrate(t.Context(), db, postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), schema); err != nil {
		t.Fatal(err)
	}
	return db, database
}

func TestPaymentInNodeHappensOnce(t *testing.T) {
	dir := install(t)
	db, database := shop(t)
	url, kill := serve(t, dir, "server.js", database)
	status, replayed, first := pay(t, url, "k-42", `{"amount": 42}`)
	if status != http.StatusCreated || replayed != "" || first != `/payments/1 {"payment":"1"}` {
		t.Fatalf("the first: %d %q %s", status, replayed, first)
	}
	kill()
	url, _ = serve(t, dir, "server.js", database)
	if status, replayed, again := pay(t, url, "k-42", `{"amount": 42}`); status != http.StatusCreated || replayed != "true" || again != first {
		t.Errorf("the retry, after a restart: %d %q %s; want 201, replayed, %s", status, replayed, again, first)
	}
	if status, _, text := pay(t, url, "k-42", `{"amount": 43}`); status != http.StatusUnprocessableEntity {
		t.Errorf("another request with the key: %d %s; want 422", status, text)
	}
	if status, _, text := pay(t, url, "k-43", `{"amount": null}`); status != http.StatusInternalServerError {
		t.Errorf("a payment that the table refuses: %d %s; want 500", status, text)
	}
	if status, replayed, text := pay(t, url, "k-43", `{"amount": 1}`); status != http.StatusCreated || replayed != "" {
		t.Errorf("the key, once its payment was rolled back: %d %q %s; want 201", status, replayed, text)
	}
	payments(t, db, 2)
}

// payments checks how many there are.
func payments(t *testing.T, db *pgxpool.Pool, want int) {
	t.Helper()
	var n int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM payments").Scan(&n); err != nil || n != want {
		t.Errorf("there are %d payments, %v; want %d", n, err, want)
	}
}

// A retry is answered by the sidecar, whether or not there is a service.
func TestPaymentInNodeBehindTheSidecarHappensOnce(t *testing.T) {
	dir := install(t)
	db, database := shop(t)
	service, kill := serve(t, dir, "behind-sidecar.js", database)
	proxy := rig.Launch(t, exec.Command(rig.Stet(t), "proxy", "--config", "stet.yaml", "--upstream", service, "--store", database,
		"--listen", "127.0.0.1:0", "--admin-listen", "off"))
	if status, _, text := pay(t, service, "k-42", `{"amount": 42}`); status != http.StatusInternalServerError || !strings.Contains(text, "did not come through the sidecar") {
		t.Errorf("past the sidecar: %d %s; want 500", status, text)
	}
	if status, _, text := pay(t, proxy.URL, "k-42", `{"amount": null}`); status != http.StatusServiceUnavailable || !strings.Contains(text, "#not-executed") {
		t.Errorf("a payment that the table refuses: %d %s; want 503", status, text)
	}
	status, replayed, first := pay(t, proxy.URL, "k-43", `{"amount": 42}`)
	if status != http.StatusCreated || replayed != "" || !strings.HasPrefix(first, "/payments/") {
		t.Fatalf("the first: %d %q %s", status, replayed, first)
	}
	kill()
	if status, replayed, again := pay(t, proxy.URL, "k-43", `{"amount": 42}`); status != http.StatusCreated || replayed != "true" || again != first {
		t.Errorf("the retry, without a service: %d %q %s; want 201, replayed, %s", status, replayed, again, first)
	}
	payments(t, db, 1)
}
