package ordeal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
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

const (
	serviceLease = 150 * time.Millisecond
	sweepEvery   = 40 * time.Millisecond
	hastyTimeout = 200 * time.Millisecond // shorter than the network's faults
	keepResults  = time.Hour              // longer than any ordeal lasts for one key

	maxStreams = 20_000 // of a herd on one connection
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_ORDEAL_CHILD"

// order tells a child what to do.
type order struct {
	Dir     string // of histories and ledger
	Process int
	Place   Place
	Addr    string
	Mode    Mode
	Point   fault.Point // where to die; "" not at all
	Visit   int         // at which visit of it, from 1
	Hasty   bool        // give up on the store while its answer may still come

	Zombie bool // claim and settle as told, see RunZombies
}

// start starts a child that does what o says.
func (o order) start(ctx context.Context) (*child.Process, error) {
	command, err := child.Order(childEnv, o)
	if err != nil {
		return nil, err
	}
	return child.Start(ctx, command)
}

// Main is called first by programs that use this package: in a child it serves
// until it is killed, and does not return.
func Main() {
	child.Main(childEnv, func(ctx context.Context, o order) error {
		if o.Zombie {
			return serveZombie(ctx, o)
		}
		return serve(ctx, o)
	})
}

// service is a payments service in a child.
type service struct {
	order
	back   *backend
	ledger *Ledger
	dying  *dying
}

func serve(ctx context.Context, o order) (err error) {
	history, err := OpenHistory(o.Dir, o.Process)
	if err != nil {
		return err
	}
	ledger, err := OpenLedger(o.Dir, o.Process)
	if err != nil {
		return errors.Join(err, history.Close())
	}
	defer func() { err = errors.Join(err, ledger.Close(), history.Close()) }()
	s := &service{order: o, ledger: ledger, dying: newDying(o, history)}
	if s.back, err = o.Place.open(ctx, history); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.back.close()) }()
	policy := stet.Policy{Lease: serviceLease, Retention: stet.Retention{Result: keepResults}}
	if o.Mode == Verify {
		policy.Verify = verifier(o.Dir)
	}
	options := stet.Options{Policy: policy, SweepEvery: sweepEvery}
	if o.Hasty {
		options.StoreTimeout = hastyTimeout
	}
	engine, err := stet.New(s.back.store, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	payments, err := s.handler(engine)
	if err != nil {
		return err
	}
	return answer(ctx, o.Addr, s.dying.watch(payments))
}

// answer serves h at addr until ctx ends, and tells the parent when it does.
func answer(ctx context.Context, addr string, h http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams}}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true) // a herd needs no connection for each caller
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	child.Ready(os.Stdout, l.Addr().String())
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// account is the header that stands for authentication here.
const account = "Account"

func scopeOf(r *http.Request) (string, error) { return r.Header.Get(account), nil }

func (s *service) handler(engine *stet.Engine) (http.Handler, error) {
	protect, charge := stethttp.New, func(_ context.Context, e Entry) error { return s.ledger.Append(e) }
	if s.Mode == Tx {
		if s.back.protect == nil {
			return nil, fmt.Errorf("%s has no transactions", s.Place.Kind)
		}
		protect, charge = s.back.protect, s.back.charge
	}
	m, err := protect(engine, stethttp.Options{Scope: scopeOf})
	if err != nil {
		return nil, err
	}
	return m.Handler(s.pay(charge)), nil
}

// pay is the business: it charges, taking its time now and then, and sometimes
// finds before the charge that it cannot.
func (s *service) pay(charge func(context.Context, Entry) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		amount, err := strconv.Atoi(r.FormValue("amount"))
		if err != nil {
			http.Error(w, "amount is not a number", http.StatusBadRequest)
			return
		}
		run := stet.FromContext(r.Context())
		if amount%4 == 0 && run.Attempt() == 1 && r.Header.Get("Retry-Count") == "0" {
			run.NothingHappened()
			http.Error(w, "processor busy", http.StatusServiceUnavailable)
			return
		}
		if amount%5 == 0 {
			pause(r.Context(), serviceLease/2) // long enough for heartbeats
		}
		e := Entry{Charge: Charge{ID: stet.NewKey(), Scope: run.Scope(), Key: run.Key(), Amount: amount},
			Fence: run.Fence(), Process: s.Process, At: now()}
		if err := charge(r.Context(), e); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if amount%3 == 0 {
			pause(r.Context(), serviceLease/3)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(e.Charge)
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
// something only about a run that is dead, of an earlier process: one of this
// process, parked because the machine was slow, may charge yet. So services with
// this verifier run one at a time.
func verifier(dir string) stet.Verify {
	started := time.Now()
	return func(_ context.Context, u stet.Unresolved) (stet.Verdict, error) {
		entries, err := ReadLedger(dir)
		if err != nil {
			return stet.CannotKnow(), err
		}
		for _, e := range entries {
			if e.Scope != u.Op.Scope || e.Key != u.Op.Key {
				continue
			}
			body, err := json.Marshal(e.Charge)
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
