// Package python tests the service of this folder over a PostgreSQL of its own.
package python

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/postgres"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }

// shop is a database with the tables, and the URL of the service's role.
func shop(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	address := rig.NewPostgres(t, rig.PostgresOptions{}).Database(t) // its own, as roles are those of a server
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := postgres.Migrate(t.Context(), pool, postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), string(schema)); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("shop")
	return pool, u.String()
}

// serve starts a service, and returns its URL and what kills it.
func serve(t *testing.T, program, database, port string) (address string, kill func()) {
	t.Helper()
	packages, err := filepath.Abs(filepath.Join("..", "..", "clients", "python"))
	if err != nil {
		t.Fatal(err)
	}
	const python = "/usr/bin/python3"
	if out, err := exec.Command(python, "-c", "import fastapi, psycopg, uvicorn").CombinedOutput(); err != nil {
		t.Fatalf("%s lacks packages; run: make services (%v: %s)", python, err, out)
	}
	cmd := exec.Command(python, program)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "PORT="+port, "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	p := rig.Launch(t, cmd)
	return p.URL, p.Kill
}

type answer struct {
	status         int
	body, location string
	replayed       bool
}

func pay(address, key string, amount int) (a answer, err error) {
	req, err := http.NewRequest(http.MethodPost, address+"/payments", strings.NewReader(fmt.Sprintf(`{"amount": %d}`, amount)))
	if err != nil {
		return a, err
	}
	req.GetBody = nil // or the transport might send it twice
	for name, value := range map[string]string{"Content-Type": "application/json", "X-Account": "acct_1", "Idempotency-Key": key} {
		req.Header.Set(name, value)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}).Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, string(body), res.Header.Get("Location"), res.Header.Get("Idempotent-Replayed") == "true"}, err
}

func paid(t *testing.T, pool *pgxpool.Pool, amount int) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM payments WHERE amount = $1", amount).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPaymentInPythonIsMadeOnce(t *testing.T) {
	pool, database := shop(t)
	address, _ := serve(t, "server.py", database, "0")
	first, err := pay(address, `"order-1"`, 4200)
	if err != nil || first != (answer{http.StatusCreated, `{"payment":1,"amount":4200}`, "/payments/1", false}) {
		t.Fatalf("%+v, %v", first, err)
	}
	first.replayed = true
	if again, err := pay(address, `"order-1"`, 4200); err != nil || again != first {
		t.Errorf("again %+v, %v; want %+v", again, err, first)
	}
	if other, err := pay(address, `"order-1"`, 4300); err != nil || other.status != http.StatusUnprocessableEntity {
		t.Errorf("another amount: %+v, %v", other, err)
	}
	if n := paid(t, pool, 4200); n != 1 {
		t.Errorf("%d payments; want 1", n)
	}
}

// hold blocks payments, and returns a function that waits for a blocked one, and a function that unblocks it.
func hold(t *testing.T, pool *pgxpool.Pool) (untilWaiting, letGo func()) {
	t.Helper()
	lock, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "LOCK TABLE payments IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	waiting := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	untilWaiting = func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); waiting() == 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the payment does not wait")
			}
		}
	}
	return untilWaiting, func() {
		if err := lock.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestPaymentOfAServiceThatWasKilledIsMadeByTheRetry(t *testing.T) {
	pool, database := shop(t)
	address, kill := serve(t, "server.py", database, "0")
	untilWaiting, letGo := hold(t, pool)
	failed := make(chan error, 1)
	go func() {
		_, err := pay(address, `"order-1"`, 4200)
		failed <- err
	}()
	untilWaiting()
	kill()
	if err := <-failed; err == nil {
		t.Error("the service was killed, and answered")
	}
	address, _ = serve(t, "server.py", database, "0")
	letGo()
	again, err := pay(address, `"order-1"`, 4200)
	for end := time.Now().Add(time.Minute); err == nil && again.status == http.StatusConflict && time.Now().Before(end); { // until the server has seen that its client is gone
		again, err = pay(address, `"order-1"`, 4200)
	}
	if err != nil || again.status != http.StatusCreated || again.replayed {
		t.Errorf("the retry gets %+v, %v", again, err)
	}
	if n := paid(t, pool, 4200); n != 1 {
		t.Errorf("%d payments; want 1", n)
	}
}

// sidecar starts stet proxy by stet.yaml, before a service.
func sidecar(t *testing.T, upstream, store string) (address string) {
	t.Helper()
	return rig.Launch(t, exec.Command(rig.Stet(t), "proxy", "--config", "stet.yaml", "--upstream", upstream, "--store", store,
		"--listen", "127.0.0.1:0", "--admin-listen", "off")).URL
}

// The service dies in the middle of a payment, and another one comes in its place. Afterwards the sidecar
// answers, whether or not there is a service.
func TestPaymentBehindTheSidecarIsMadeOnce(t *testing.T) {
	pool, database := shop(t)
	if _, err := pool.Exec(t.Context(), "REVOKE EXECUTE ON FUNCTION stet.stet_begin_raw FROM shop"); err != nil { // stet_settle_raw is all it needs
		t.Fatal(err)
	}
	service, kill := serve(t, "behind_sidecar.py", database, "0")
	address := sidecar(t, service, pool.Config().ConnString())
	if direct, err := pay(service, `"order-1"`, 4200); err != nil || direct.status != http.StatusInternalServerError || paid(t, pool, 4200) != 0 {
		t.Errorf("past the sidecar: %+v, %v; want 500, and no payment", direct, err)
	}
	untilWaiting, letGo := hold(t, pool)
	got := make(chan answer, 1)
	go func() {
		a, err := pay(address, `"order-1"`, 4200)
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	untilWaiting()
	kill()
	_, port, _ := strings.Cut(strings.TrimPrefix(service, "http://"), ":")
	_, kill = serve(t, "behind_sidecar.py", database, port)
	letGo()
	first := <-got
	for end := time.Now().Add(time.Minute); first.status >= 500 && time.Now().Before(end); { // it was tried while the service was away
		var err error
		if first, err = pay(address, `"order-1"`, 4200); err != nil {
			t.Fatal(err)
		}
	}
	if first.status != http.StatusCreated || !strings.HasSuffix(first.body, `"amount":4200}`) || !strings.HasPrefix(first.location, "/payments/") {
		t.Fatalf("%+v", first)
	}
	kill()
	first.replayed = true
	if again, err := pay(address, `"order-1"`, 4200); err != nil || again != first {
		t.Errorf("again, without a service: %+v, %v; want %+v", again, err, first)
	}
	if n := paid(t, pool, 4200); n != 1 {
		t.Errorf("%d payments; want 1", n)
	}
}
