package stettest_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stettest"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// TestMain is also the program that is killed, if it receives an address.
func TestMain(m *testing.M) {
	if addr := os.Getenv("STETTEST_ADDR"); addr != "" {
		log.Fatal(serve(addr, os.Getenv("STETTEST_KIND")))
	}
	os.Exit(m.Run())
}

// report is a test that collects errors.
type report struct {
	testing.TB
	errors []string
}

func (r *report) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// has requires an error of each of the cases, and none of the others.
func (r *report) has(t *testing.T, cases ...string) {
	t.Helper()
	for _, name := range cases {
		if !slices.ContainsFunc(r.errors, func(text string) bool { return strings.Contains(text, name) }) {
			t.Errorf("no error has %q: %q", name, r.errors)
		}
	}
	for _, text := range r.errors {
		if !slices.ContainsFunc(cases, func(name string) bool { return strings.Contains(text, name) }) {
			t.Errorf("unexpected: %s", text)
		}
	}
}

func request(n int) *http.Request {
	return httptest.NewRequest(http.MethodPost, "/payments?by=card", strings.NewReader(fmt.Sprint(n)))
}

// shop remembers responses by hand.
type shop struct {
	repeats  bool // it ignores keys
	races    bool // it checks a key, waits, and pays
	forgets  bool // it stores the response after it was sent
	confuses bool // it does not compare the body

	mu       sync.Mutex
	payments map[string]int       // by body
	stored   map[string][2]string // body and response, by key
}

func (s *shop) effects(n int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.payments[fmt.Sprint(n)], nil
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	body, key := string(text), r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.races {
		before := len(s.stored[key][1])
		s.mu.Unlock()
		time.Sleep(500 * time.Millisecond) // the other duplicates check the key, too
		s.mu.Lock()
		if before == 0 {
			delete(s.stored, key)
		}
	}
	if stored, ok := s.stored[key]; ok && !s.repeats {
		if stored[0] != body && !s.confuses {
			http.Error(w, "another request", http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, stored[1])
		return
	}
	s.payments[body]++
	response := fmt.Sprintf("payment %s-%d", body, s.payments[body])
	if !s.forgets {
		s.stored[key] = [2]string{body, response}
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, response)
	s.stored[key] = [2]string{body, response}
}

func TestCheckFindsDefects(t *testing.T) {
	for name, c := range map[string]struct {
		shop *shop
		want []string
	}{
		"none":                        {&shop{}, nil},
		"each request has an effect":  {&shop{repeats: true}, []string{"repeated", "another request", "at the same time", "disconnects", "response is lost"}},
		"the key is checked too soon": {&shop{races: true}, []string{"at the same time", "disconnects"}},
		"a crash forgets the key":     {&shop{forgets: true}, []string{"response is lost"}},
		"the body is not compared":    {&shop{confuses: true}, []string{"another request"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.shop.payments, c.shop.stored = map[string]int{}, map[string][2]string{}
			r := &report{TB: t}
			stettest.Check(r, c.shop, stettest.Service{Request: request, Effects: c.shop.effects})
			r.has(t, c.want...)
		})
	}
}

// open returns a service with stet whose payments are rows in a file, and the count of them.
func open(path string) (http.Handler, *sql.DB, error) {
	store, err := sqlite.Open(context.Background(), path, sqlite.Options{})
	if err != nil {
		return nil, nil, err
	}
	engine := stethttp.Must(stet.New(store, stet.Options{}))
	once := stethttp.Must(stethttp.NewTx(stethttp.Must(stet.WithTx(engine, store)), stethttp.Options{Scope: stethttp.SingleTenant}))
	_, err = store.DB().Exec("CREATE TABLE IF NOT EXISTS payments (amount TEXT)")
	return once.HandleTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) {
		body, _ := io.ReadAll(r.Body)
		if _, err := tx.ExecContext(r.Context(), "INSERT INTO payments VALUES (?)", string(body)); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}), store.DB(), err
}

// rows counts payments in a database.
func rows(db *sql.DB) func(int) (int, error) {
	return func(n int) (count int, err error) {
		err = db.QueryRow("SELECT count(*) FROM payments WHERE amount = ?", fmt.Sprint(n)).Scan(&count)
		return count, err
	}
}

func TestCheckAcceptsServiceWithLeases(t *testing.T) {
	s := &shop{repeats: true, payments: map[string]int{}, stored: map[string][2]string{}}
	engine := stethttp.Must(stet.New(memory.New(memory.Options{}), stet.Options{}))
	t.Cleanup(func() { _ = engine.Close() })
	once := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant}))
	stettest.Check(t, once.Handler(s), stettest.Service{Request: request, Effects: s.effects})
}

// serve is the program that is killed. Its state is in a file. It has a child process.
func serve(addr, kind string) error {
	handler, db, err := open(os.Getenv("STETTEST_FILE"))
	if err != nil {
		return err
	}
	sleep := exec.Command("sleep", "600") //nolint:noctx // it is killed
	sleep.ExtraFiles = []*os.File{os.NewFile(3, "alive")}
	if err := sleep.Start(); err != nil {
		return err
	}
	if kind == "forgets" {
		s := &shop{payments: map[string]int{}, stored: map[string][2]string{}}
		var one sync.Mutex
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			one.Lock()
			defer one.Unlock()
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			if _, ok := s.stored[r.Header.Get("Idempotency-Key")]; !ok {
				_, _ = db.Exec("INSERT INTO payments VALUES (?)", string(body))
			}
			s.ServeHTTP(w, r)
		})
	}
	return http.ListenAndServe(addr, handler) //nolint:gosec // of a test
}

func TestCheckCommandKillsTheProcessGroup(t *testing.T) {
	for kind, want := range map[string][]string{"stet": nil, "forgets": {"killed after the response"}} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "shop.db")
			_, db, err := open(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			alive, held, err := os.Pipe() // each process of the service has the end for writing
			if err != nil {
				t.Fatal(err)
			}
			start := func(addr string) *exec.Cmd {
				cmd := exec.Command(os.Args[0]) //nolint:gosec,noctx // this program
				cmd.Env = append(os.Environ(), "STETTEST_ADDR="+addr, "STETTEST_KIND="+kind, "STETTEST_FILE="+path)
				cmd.ExtraFiles = []*os.File{held}
				return cmd
			}
			r := &report{TB: t}
			stettest.CheckCommand(r, start, stettest.Service{Request: request, Effects: rows(db)})
			_ = held.Close()
			if _, err := io.ReadAll(alive); err != nil { // returns when no process is left
				t.Error(err)
			}
			_ = alive.Close()
			if kind == "forgets" { // other kills can find it, too
				r.errors = slices.DeleteFunc(r.errors, func(text string) bool {
					return strings.Contains(text, "killed when the effect") || strings.Contains(text, "killed during")
				})
			}
			r.has(t, want...)
		})
	}
}
