package languages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
)

// verifiedPoints are where a service dies that can be asked what became of an operation.
var verifiedPoints = []fault.Point{"received", "begun", "written", "commit.before", "commit.after", "answer.before", crashtest.Anywhere, crashtest.Anywhere, crashtest.Anywhere}

// verifiedSchema notes which runs of an operation have begun, and which may not any more.
const verifiedSchema = `CREATE TABLE runs (operation text, fence bigint, refused boolean NOT NULL, PRIMARY KEY (operation, fence));
ALTER TABLE ledger ADD operation text;
CREATE INDEX ON ledger (operation)`

const begun = "INSERT INTO runs (operation, fence, refused) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"

// errLate: the verifier has said of this run that it did not happen.
var errLate = errors.New("another run has taken this one's place")

// account is a service that pays in transactions of its own, and tells what became of an
// operation when it is asked.
type account struct {
	pool *pgxpool.Pool
	at   func(point string)
}

// verified is that service, in a process that dies where DIE says.
func verified(ctx context.Context, _ string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	point, visit, _ := strings.Cut(os.Getenv("DIE"), ":")
	n, _ := strconv.Atoi(visit)
	var seen atomic.Int64
	a := &account{pool, func(here string) {
		if here == point && seen.Add(1) == int64(n) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", a.pay)
	mux.HandleFunc("GET /verify", a.verify)
	server := &http.Server{Addr: "127.0.0.1:" + os.Getenv("PORT"), Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Println("listening on http://" + server.Addr)
	return server.ListenAndServe()
}

func run(r *http.Request) (operation string, fence int64) {
	fence, _ = strconv.ParseInt(r.Header.Get("Stet-Fence"), 10, 64)
	return r.Header.Get("Stet-Operation"), fence
}

func (a *account) pay(w http.ResponseWriter, r *http.Request) {
	a.at("received")
	var id int64
	operation, fence := run(r)
	err := pgx.BeginFunc(r.Context(), a.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(r.Context(), begun, operation, fence, false)
		if err == nil && tag.RowsAffected() == 0 {
			err = errLate
		}
		if err != nil {
			return err
		}
		a.at("begun")
		err = tx.QueryRow(r.Context(), "INSERT INTO ledger (key, by, operation) VALUES ($1, 'verified', $2) RETURNING id", r.Header.Get("Idempotency-Key"), operation).Scan(&id)
		a.at("written")
		a.at("commit.before")
		return err
	})
	if err != nil {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close() // the COMMIT may have been obeyed: it must ask
		}
		return
	}
	a.at("commit.after")
	a.at("answer.before")
	answerPaid(w, id)
}

func answerPaid(w http.ResponseWriter, id int64) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, fmt.Sprintf(`{"payment": %d}`, id))
}

// verify prevents later payments of the run in question, and then reads the ledger.
func (a *account) verify(w http.ResponseWriter, r *http.Request) {
	operation, fence := run(r)
	var id int64
	_, err := a.pool.Exec(r.Context(), begun, operation, fence, true)
	if err == nil {
		err = a.pool.QueryRow(r.Context(), "SELECT id FROM ledger WHERE operation = $1", operation).Scan(&id)
	}
	w.Header().Set("Stet-Operation", operation)
	switch {
	case err == nil:
		w.Header().Set("Stet-Status", "201")
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"payment": %d}`, id)
	case errors.Is(err, pgx.ErrNoRows):
		w.Header().Set("Stet-Execution", "none")
		http.Error(w, "not paid", http.StatusNotFound)
	default:
		http.Error(w, "cannot tell", http.StatusServiceUnavailable)
	}
}
