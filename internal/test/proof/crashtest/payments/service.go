package payments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/child"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// Mode is how the service protects its payments.
type Mode string

const (
	// Tx holds ledger and record in one transaction.
	Tx Mode = "tx"
	// MarkUnknown runs in lease mode; expired runs stay unknown.
	MarkUnknown Mode = "unknown"
	// Verify runs in lease mode with a verifier that looks into the ledger.
	Verify Mode = "verify"
)

const (
	serviceLease = 150 * time.Millisecond
	sweepEvery   = 40 * time.Millisecond
	hastyTimeout = 200 * time.Millisecond // shorter than the network's faults
	keepResults  = time.Hour              // longer than any crash test lasts for one key
)

// childEnv holds a child's order; without it the program is a parent.
const childEnv = "STET_CRASHTEST_PAYMENTS"

// order tells a child what to do.
type order struct {
	Dir     string // of histories and ledger
	Process int
	Place   crashtest.Place
	Addr    string
	Mode    Mode
	Visit   crashtest.Visit
	Hasty   bool   // give up on the store while its answer may still come
	Defect  string // planted, for the judge to find

	Zombie bool // claim and settle as told, see RunZombies
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
	history *crashtest.History
	site    *crashtest.Site
	ledger  *crashtest.Ledger

	// What a planted defect may change.
	scope  func(*http.Request) (string, error)
	charge func(context.Context, crashtest.Effect) error
	verify func(context.Context, stet.Status) (stet.Resolution, error)
	wrap   func(http.Handler) http.Handler
	lease  time.Duration
}

// plant, in a test, plants a defect.
var plant func(*service)

func serve(ctx context.Context, o order) (err error) {
	history, err := crashtest.OpenHistory(o.Dir, o.Process)
	if err != nil {
		return err
	}
	ledger, err := crashtest.OpenLedger(o.Dir)
	if err != nil {
		return errors.Join(err, history.Close())
	}
	defer func() { err = errors.Join(err, ledger.Close(), history.Close()) }()
	mortal := o.Visit.Mortal(history)
	fault.Set(mortal.Pass)
	s := &service{order: o, history: history, ledger: ledger, scope: scopeOf, wrap: mortal.Watch, lease: serviceLease}
	if s.site, err = o.Place.Open(ctx, history); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.site.Close()) }()
	s.verify = s.lookUp
	s.charge = func(_ context.Context, e crashtest.Effect) error { return s.ledger.Have(e) }
	if o.Mode == Tx {
		s.charge = s.site.Have
	}
	if o.Defect != "" {
		plant(s)
	}
	policy := stet.Policy{Lease: s.lease, Retention: store.Retention{Result: keepResults}}
	if o.Mode == Verify {
		policy.Verify = s.verify
	}
	options := stet.Options{Policy: policy, SweepEvery: sweepEvery}
	if o.Hasty {
		options.StoreTimeout = hastyTimeout
	}
	engine, err := stet.New(s.site.Recorded, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	payments, err := s.handler(engine)
	if err != nil {
		return err
	}
	return serveAt(ctx, o.Addr, s.wrap(payments))
}

// serveAt serves h at addr until ctx ends, and tells the parent when it does.
func serveAt(ctx context.Context, addr string, h http.Handler) error {
	l, err := crash.Listen(ctx, addr)
	if err != nil {
		return err
	}
	child.Ready(os.Stdout, l.Addr().String())
	return crash.Serve(ctx, l, h)
}

// account is the header that stands for authentication here.
const account = "Account"

func scopeOf(r *http.Request) (string, error) { return r.Header.Get(account), nil }

func (s *service) handler(engine *stet.Engine) (http.Handler, error) {
	protect := stethttp.New
	if s.Mode == Tx {
		if s.site.Protect == nil {
			return nil, fmt.Errorf("%s has no transactions", s.Place.Kind)
		}
		protect = s.site.Protect
	}
	m, err := protect(engine, stethttp.Options{Scope: s.scope})
	if err != nil {
		return nil, err
	}
	return m.Handler(http.HandlerFunc(s.pay)), nil
}

// pay is the business: it charges, taking its time now and then, and sometimes
// finds before the charge that it cannot.
func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	amount, err := strconv.Atoi(r.FormValue("amount"))
	if err != nil {
		http.Error(w, "amount is not a number", http.StatusBadRequest)
		return
	}
	run := stet.FromContext(r.Context())
	if amount%4 == 0 && run.Attempt() == 1 && r.Header.Get("Retry-Count") == "0" {
		run.Declare(stet.NotExecuted, 0)
		http.Error(w, "processor busy", http.StatusServiceUnavailable)
		return
	}
	if amount%5 == 0 {
		_ = crash.Pause(r.Context(), serviceLease/2) // long enough for heartbeats
	}
	e := crashtest.Effect{Charge: crashtest.Charge{ID: stet.NewKey(), Scope: run.Op().Scope, Key: run.Op().Key, Amount: amount},
		Fence: run.Fence(), Process: s.Process, At: crashtest.Now()}
	if err := s.charge(r.Context(), e); errors.Is(err, crashtest.ErrVoided) {
		run.Declare(stet.NotExecuted, 0)
		http.Error(w, "a verifier got the answer that this payment is not made", http.StatusServiceUnavailable)
		return
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if amount%3 == 0 {
		_ = crash.Pause(r.Context(), serviceLease/3)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(e.Charge)
}

// lookUp looks for the charge in the ledger, which keeps a run that it does not
// find from charging later.
func (s *service) lookUp(_ context.Context, st stet.Status) (stet.Resolution, error) {
	e, happened, err := s.ledger.Verify(st.Op.Scope, st.Op.Key, st.Record.Fence)
	if err != nil {
		return stet.CannotKnow(), err
	}
	if !happened {
		return stet.ItDidNotHappen(), nil
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
