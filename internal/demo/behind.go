package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/stet-go/stet/proxy"
)

// proxyLease is how long the storm waits for what a killed proxy had begun.
const proxyLease = time.Second

// proxyConfig is the configuration of a proxy before the service.
//
// after is 0: a response breaks off when the service has died, and then it is not
// at work on anything. What a proxy that died had begun is asked about when its
// lease is over; should the service be at it still, verify sees to that.
var proxyConfig = fmt.Sprintf(`scope: single-tenant
routes:
  - path: /payments
    lease: %s
    retention: {result: 10m, tombstone: 10m}
    verify: {url: %s, after: 0s}
`, proxyLease, verifyPath)

// proxyFlags writes the configuration of a proxy into dir and returns its
// arguments. Without a store it keeps its records there, too.
func proxyFlags(dir, store, upstream string) ([]string, error) {
	if store == "" {
		store = filepath.Join(dir, "proxy.db")
	}
	config := filepath.Join(dir, "stet.yaml")
	if err := os.WriteFile(config, []byte(proxyConfig), 0o600); err != nil {
		return nil, err
	}
	return []string{"--config", config, "--upstream", "http://" + upstream, "--store", store, "--listen", "127.0.0.1:0", "--admin", "off"}, nil
}

// attempt is what a proxy says of a request: which operation it is, and the fence
// of this try at it. Without a proxy it is zero.
type attempt struct {
	operation string
	fence     int64
}

func attemptOf(r *http.Request) (a attempt, err error) {
	if a.operation = r.Header.Get(proxy.HeaderOperation); a.operation != "" {
		a.fence, err = strconv.ParseInt(r.Header.Get(proxy.HeaderFence), 10, 64)
	}
	return a, err
}

var errGivenUp = errors.New("the proxy was told that this attempt did not happen, and will not")

// allowed is errGivenUp for an attempt that verify has answered for.
func (a attempt) allowed(ctx context.Context, tx *sql.Tx) error {
	if a.operation == "" {
		return nil
	}
	var one int
	err := tx.QueryRowContext(ctx, `SELECT 1 FROM given_up WHERE operation = ? AND fence >= ?`, a.operation, a.fence).Scan(&one)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err == nil:
		return errGivenUp
	}
	return err
}

// verify answers the proxy's question what became of an operation of which it
// has heard nothing. "It did not happen" is a promise that it never will: the
// same transaction that has found no charge keeps the attempt from making one.
func (s *shop) verify(w http.ResponseWriter, r *http.Request) {
	a, err := attemptOf(r)
	if err != nil || a.operation == "" {
		http.Error(w, "this question is for a proxy to ask", http.StatusBadRequest)
		return
	}
	c, happened, err := s.whatBecameOf(r.Context(), a)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set(proxy.HeaderOperation, a.operation)
	if !happened {
		w.Header().Set(proxy.HeaderExecution, "none")
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set(proxy.HeaderStatus, strconv.Itoa(http.StatusCreated))
	answer(w, http.StatusOK, c)
}

// whatBecameOf returns the charge of an operation, or gives the attempt up.
func (s *shop) whatBecameOf(ctx context.Context, a attempt) (c charge, happened bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return c, false, err
	}
	defer func() { _ = tx.Rollback() }()
	err = tx.QueryRowContext(ctx, `SELECT id, payment, amount, receipt FROM charges WHERE operation = ? ORDER BY id`, a.operation).
		Scan(&c.ID, &c.Payment, &c.Amount, &c.Receipt)
	if err == nil {
		return c, true, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return c, false, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO given_up (operation, fence) VALUES (?, ?)
		ON CONFLICT (operation) DO UPDATE SET fence = max(fence, excluded.fence)`, a.operation, a.fence)
	if err != nil {
		return c, false, err
	}
	return c, false, tx.Commit()
}
