package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/stethttp"
)

// Mode is how the service protects its payments.
type Mode string

const (
	// Tx holds ledger and record in one transaction.
	Tx Mode = "tx"
	// Park runs in lease mode; dead runs stay unknown.
	Park Mode = "park"
	// Verify runs in lease mode with a verifier that looks into the ledger.
	Verify Mode = "verify"
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_CRASH_CHILD"

// order tells a child what to do.
type order struct {
	Dir   string
	URL   string // of a PostgreSQL database; "" for SQLite in Dir
	Addr  string
	Mode  Mode
	Point fault.Point // where to die; "" not at all
	Visit int         // at which visit of it, from 1

	Zombie bool // claim and settle as told, see RunZombies
}

// Main is called first by programs that use this package: in a child it serves
// until it is killed, and does not return.
func Main() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		ctx, cancel := child.WithParent(context.Background(), os.Stdin)
		if o.Zombie {
			err = serveZombie(ctx, o)
		} else {
			err = serve(ctx, o)
		}
		cancel()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash child:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// dieAt makes this process kill itself at the given visit of a point.
func dieAt(p fault.Point, visit int) {
	var visits atomic.Int64
	fault.Set(func(at fault.Point) {
		if at == p && visits.Add(1) == int64(visit) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way: not one step further
		}
	})
}

func serve(ctx context.Context, o order) (err error) {
	if o.Point != "" {
		dieAt(o.Point, o.Visit)
	}
	back, err := open(ctx, o.Dir, o.URL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	ledger, err := OpenLedger(ledgerPath(o.Dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	policy := stet.Policy{Lease: 150 * time.Millisecond, Retention: stet.Retention{Result: time.Hour}}
	if o.Mode == Verify {
		policy.Verify = verifier(o.Dir)
	}
	engine, err := stet.New(back.store, stet.Options{Policy: policy, SweepEvery: 40 * time.Millisecond})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	payments, err := handler(o.Mode, engine, back, ledger)
	if err != nil {
		return err
	}
	return answer(ctx, o.Addr, payments)
}

// answer serves h at addr until ctx ends, and tells the parent when it does.
func answer(ctx context.Context, addr string, h http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	child.Ready(os.Stdout, l.Addr().String())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func handler(mode Mode, engine *stet.Engine, back *backend, ledger *Ledger) (http.Handler, error) {
	protect, charge := stethttp.New, func(_ context.Context, c Charge) error { return ledger.Append(c) }
	if mode == Tx {
		protect, charge = back.protect, back.charge
	}
	m, err := protect(engine, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		return nil, err
	}
	return m.Handler(pay(charge)), nil
}

// pay is the business: it charges, taking its time now and then, and sometimes
// finds before the charge that it cannot.
func pay(charge func(context.Context, Charge) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		amount, err := strconv.Atoi(r.FormValue("amount"))
		if err != nil {
			http.Error(w, "amount is not a number", http.StatusBadRequest)
			return
		}
		run := stet.FromContext(r.Context())
		if amount%7 == 0 && run.Attempt() == 1 && r.Header.Get("Retry-Count") == "0" {
			run.NothingHappened()
			http.Error(w, "processor busy", http.StatusServiceUnavailable)
			return
		}
		if amount%5 == 0 {
			pause(r.Context(), 80*time.Millisecond) // long enough for heartbeats
		}
		c := Charge{ID: stet.NewKey(), Key: run.Key(), Amount: amount}
		if err := charge(r.Context(), c); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if amount%3 == 0 {
			pause(r.Context(), 60*time.Millisecond)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(c)
	})
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// verifier looks for the charge in the ledger. That it is not there says
// something only about a run that is dead, of an earlier child: one of this
// child, parked because the machine was slow, may charge yet.
func verifier(dir string) stet.Verify {
	started := time.Now()
	return func(_ context.Context, u stet.Unresolved) (stet.Verdict, error) {
		charges, err := ReadLedger(ledgerPath(dir))
		if err != nil {
			return stet.CannotKnow(), err
		}
		for _, c := range charges {
			if c.Key != u.Op.Key {
				continue
			}
			body, err := json.Marshal(c)
			if err != nil {
				return stet.CannotKnow(), err
			}
			out, err := stethttp.Outcome(http.StatusCreated, http.Header{"Content-Type": {"application/json"}}, append(body, '\n'))
			if err != nil {
				return stet.CannotKnow(), err
			}
			return stet.ItHappened(out), nil
		}
		if u.ClaimedAt.After(started) {
			return stet.CannotKnow(), nil
		}
		return stet.ItDidNotHappen(), nil
	}
}

func ledgerPath(dir string) string { return dir + "/ledger" }
