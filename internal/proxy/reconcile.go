package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/reconcile"
	"github.com/stet-go/stet/store"
)

// Reconcile calls the Verify of operations whose outcome is unknown, without a retry of the
// client: see package reconcile.
type Reconcile struct {
	Every       Duration `yaml:"every"`
	Rate        int      `yaml:"rate"`
	Concurrency int      `yaml:"concurrency"`
	OlderThan   Duration `yaml:"older_than"`
	AcceptedFor Duration `yaml:"accepted_for"`
}

// Limits of a Reconcile.
const (
	maxReconcileRate        = 100_000
	maxReconcileConcurrency = 1000
)

func (r *Reconcile) check() error {
	switch {
	case r.Rate > maxReconcileRate:
		return at("rate", "%d; it must be 1 to %d", r.Rate, maxReconcileRate)
	case r.Concurrency > maxReconcileConcurrency:
		return at("concurrency", "%d; it must be 1 to %d", r.Concurrency, maxReconcileConcurrency)
	}
	return nil
}

// keeping sets which names of its operations a route stores.
func (c *Config) keeping(r *Route, p *stet.Policy) error {
	oneTenant, encrypted := c.scope(r).Kind == "single-tenant", c.Encryption != nil && len(c.Encryption.Keys) > 0
	p.KeepKey = r.KeepKey || encrypted // an operator can then find out which request is unknown
	p.KeepScope = r.KeepScope || encrypted || oneTenant && (r.KeepKey || r.Verify != nil && (r.Verify.By == byOperation || r.Verify.By == byReference))
	if p.KeepKey && !p.KeepScope {
		return at("keep_key", "a key names an operation only within its scope: add keep_scope: true")
	}
	if r.Verify != nil && r.Verify.By == byReference && r.Reference == "" {
		return at("verify", "by: the service cannot find operations by a reference where there is none: add reference: header:NAME, or a JSON pointer")
	}
	return nil
}

// checkReconcile returns the errors of Reconcile.
func (c *Config) checkReconcile(done *checked, bad func(err error, path ...any)) {
	if c.Reconcile == nil {
		if field(c.root, "reconcile") != nil {
			bad(at("reconcile", "it says nothing; write reconcile: {} for all defaults, or leave it out"))
		}
		return
	}
	bad(c.Reconcile.check(), "reconcile")
	asks := false
	for i, cr := range done.routes {
		switch v := cr.Verify; {
		case v == nil || v.RetriesOnly || cr.options.Scope == nil: // the last: it was refused already
			continue
		case cr.Async != nil: // accepted operations store both
		case !cr.policy.KeepScope:
			bad(at("verify", "reconcile asks about operations whose scope is kept: add keep_scope: true; or verify.retries_only: true, to have it asked on retries only"), "routes", i)
		case cmp.Or(v.By, byKey) == byKey && !cr.policy.KeepKey:
			bad(at("verify", "reconcile asks about operations whose key is kept: add keep_key: true; or verify.by: operation, if the service stores %s with its writes; or verify.by: reference; or verify.retries_only: true",
				HeaderOperation), "routes", i)
		}
		asks = true
	}
	if !asks {
		bad(at("reconcile", "no route has a verify that it could ask"))
	}
}

// verifiers returns the verifiers of routes by class, and completes checked.classes.
func (c *Config) verifiers(done *checked, toUpstream, elsewhere http.RoundTripper, log *slog.Logger) (map[string]*verifier, error) {
	all := map[string]*verifier{}
	for _, cr := range done.all() {
		if cr.Verify != nil {
			v, err := c.newVerifier(&cr.Route, done.upstream, toUpstream, elsewhere)
			if err != nil {
				return nil, err
			}
			cr.policy.Verify = v.verify
			if !cr.Verify.RetriesOnly {
				all[cr.class()] = v
			}
		}
		done.classes[cr.class()] = cr.policy
	}
	return all, c.consumeClasses(done, toUpstream, elsewhere, log)
}

// Reconciled is the result of one pass.
type Reconciled struct {
	reconcile.Report
	// Alone counts operations of classes without a Verify.
	Alone int
	// Skipped counts operations left for the next pass, because the last calls of their route's
	// Verify got no response.
	Skipped int
}

// maxUnanswered is how many calls in a row can stay without a response before a pass skips the
// route. Each can take as long as Verify.Timeout.
const maxUnanswered = 16

// reconciler makes passes with the verifiers of routes.
type reconciler struct {
	engine     *stet.Engine
	namespaces []string
	verifiers  map[string]*verifier // by class
	log        *slog.Logger
	every      time.Duration
	pass       *reconcile.Reconciler

	mu         sync.Mutex // guards the fields below, of the current pass
	left       Reconciled
	unanswered map[string]int // by class, one after the other
}

func (c *Config) newReconciler(e *stet.Engine, verifiers map[string]*verifier, o ReconcileOptions) (*reconciler, error) {
	s := cmp.Or(c.Reconcile, &Reconcile{})
	r := &reconciler{engine: e, namespaces: c.Namespaces(), verifiers: verifiers, log: o.ErrorLog, every: cmp.Or(time.Duration(s.Every), reconcile.DefaultEvery)}
	options := reconcile.Options{Verify: r.verify, Select: r.selects, OlderThan: time.Duration(s.OlderThan), AcceptedFor: time.Duration(s.AcceptedFor),
		Concurrency: s.Concurrency, Rate: s.Rate, DryRun: o.DryRun, ErrorLog: o.ErrorLog}
	var err error
	r.pass, err = reconcile.New(e, options)
	return r, err
}

// selects reports whether a record can be resolved here.
func (r *reconciler) selects(st stet.Status) bool {
	if st.Record.State == store.Accepted { // it has waited too long
		policy, ok := r.engine.Policy(st.Op.Class)
		return ok && policy.Stale.State() == store.Failed && isNamed(r.namespaces, st, true)
	}
	v := r.verifiers[st.Op.Class]
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case v == nil:
		r.left.Alone++
	case !v.finds(st):
		r.left.Blind++
	case r.unanswered[st.Op.Class] >= maxUnanswered:
		r.left.Skipped++
	default:
		return true
	}
	return false
}

// verify is a reconcile.Options.Verify. It is called for selected operations only.
func (r *reconciler) verify(ctx context.Context, st stet.Status) (stet.Resolution, error) {
	v := r.verifiers[st.Op.Class]
	if v == nil {
		return stet.CannotKnow(), fmt.Errorf("proxy: the class %q has no verifier", st.Op.Class)
	}
	resolution, err := v.verify(ctx, st)
	r.mu.Lock()
	if errors.Is(err, errUnanswered) {
		r.unanswered[st.Op.Class]++
	} else {
		r.unanswered[st.Op.Class] = 0
	}
	r.mu.Unlock()
	return resolution, err
}

// once makes a pass.
func (r *reconciler) once(ctx context.Context) (Reconciled, error) {
	r.mu.Lock()
	r.left, r.unanswered = Reconciled{}, map[string]int{}
	r.mu.Unlock()
	rep, err := r.pass.Pass(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	rep.Blind += r.left.Blind
	r.left.Report = rep
	return r.left, err
}

// run makes passes until ctx ends.
func (r *reconciler) run(ctx context.Context) error {
	for ctx.Err() == nil {
		did, err := r.once(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			r.log.WarnContext(ctx, "reconcile: the pass broke off", slog.Any("error", err))
		case did.Left+did.Errors+did.Blind > 0:
			r.log.WarnContext(ctx, "reconcile: operations wait for an operator, or a retry", slog.Int("left", did.Left), slog.Int("errors", did.Errors), slog.Int("blind", did.Blind), slog.Int("skipped", did.Skipped))
		}
		timer.Sleep(ctx, timer.Around(r.every))
	}
	return nil
}

// reconciles adds the reconciler to the parts of a generation.
func (g *generation) reconciles(o Options) error {
	if g.config.Reconcile == nil || o.Parts&Reconciler == 0 {
		return nil
	}
	r, err := g.config.newReconciler(g.engine, g.verifiers, ReconcileOptions{ErrorLog: o.ErrorLog})
	if err != nil {
		return err
	}
	g.parts = append(g.parts, part{"reconcile", r.run})
	return nil
}

// ReconcileOptions are those of ReconcileOnce. The zero value is usable.
type ReconcileOptions struct {
	// DryRun calls verifiers and reports, but changes nothing.
	DryRun bool
	// Observer gets the engine's events. Default: none.
	Observer observe.Observer
	// ErrorLog receives errors, without keys. Default: slog.Default().
	ErrorLog *slog.Logger
}

// ReconcileOnce makes one pass of Config.Reconcile without a running Proxy, for cron. If the
// configuration has no Reconcile, its defaults apply. The error lists all errors of the
// configuration, or says why the pass ended early; did reports the work before that.
func ReconcileOnce(ctx context.Context, s store.Store, c *Config, o ReconcileOptions) (did Reconciled, err error) {
	o.ErrorLog = cmp.Or(o.ErrorLog, slog.Default())
	with := *c
	with.Reconcile, with.Store.SweepEvery = cmp.Or(c.Reconcile, &Reconcile{}), -1
	p, err := New(s, &with, Options{Observer: o.Observer, ErrorLog: o.ErrorLog})
	if err != nil {
		return did, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	r, err := with.newReconciler(p.now.engine, p.now.verifiers, o)
	if err != nil {
		return did, err
	}
	return r.once(ctx)
}
