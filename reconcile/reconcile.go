// Package reconcile resolves expired runs. It scans the records whose outcome is unknown, and
// calls the verifier of their class (stet.Policy.Verify), which can read the business tables or
// query the payment processor. Then it resolves each record under the fence that the verifier got.
//
//	r, err := reconcile.New(engine, reconcile.Options{})
//	report, err := r.Pass(ctx)
//
// A verifier is called for operations whose records have scope and key: accepted operations,
// and those of a policy with KeepKey. With Options.ByRef it is also called for records with a
// reference (stet.Op.Ref). Options.Verify is called first, for all records.
//
// A run is expired if its record is unknown, or running with an expired lease. Any number of
// processes may reconcile one store at the same time: a resolution is refused if the record has
// changed since it was read, so the first of two resolutions counts. An expired run is marked
// unknown before its verifier is called, so that it can no longer write notes.
//
// # The resolution of a record
//
//	the verifier                     the operation
//	ItHappened                       settled with that outcome
//	ItDidNotHappen                   accepted again, for a worker; otherwise retryable: the
//	                                 next retry runs it. An open step runs again then, and a
//	                                 finished step does not
//	MayRunAgain                      the same; with an open step it stays unknown
//	CannotKnow                       Policy.Stale is the resolution
//	was not called, because the      left unknown, and counted as Blind
//	record has no key
//	an error, or a panic             left unchanged until the next pass
package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/internal/timer"
	"github.com/stet-go/stet/store"
)

// Defaults of Options.
const (
	// DefaultConcurrency is how many records are resolved at a time.
	DefaultConcurrency = 8
	// DefaultRate is how many records are resolved in a second.
	DefaultRate = 100
	// DefaultEvery is how often Run makes a pass.
	DefaultEvery = time.Minute
)

// Options configure a Reconciler. The zero value applies the policies of the
// engine's classes.
type Options struct {
	// Verify, if set, is called for each record before the verifier of its class, which is
	// called if this one cannot know. It is for other sources than the service's books, such
	// as the workers of package stetwork. It may be called more than once for a run, and by
	// several processes at the same time. Its context ends after the class's
	// Policy.VerifyTimeout. It must return ItDidNotHappen only if the run is dead and not just
	// paused, because the operation then runs again.
	Verify func(context.Context, stet.Status) (stet.Resolution, error)
	// ByRef states that the verifiers of the classes find operations by stet.Op.Ref alone. They
	// are then also called for records without a key that have a reference. References must
	// then be unique across scopes, and not be chosen by clients: otherwise the outcome of one
	// tenant could be replayed to another. Compare Record.Scope with store.DigestScope.
	// References longer than store.MaxLabel are cut, and not found. Default: verifiers are
	// called for records with a key only.
	ByRef bool
	// Scope restricts a pass to one scope: store.DigestScope returns its ID. The store filters, so
	// no record of another scope is read. The zero ID is the default: all scopes.
	Scope store.ID
	// Select, if set, selects the records to resolve. It is called with each record that was
	// read. Default: all.
	Select func(stet.Status) bool
	// OlderThan leaves out records that were claimed less than this ago. Default 0.
	OlderThan time.Duration
	// UnknownOnly leaves expired runs that are not yet marked unknown to the store's sweep.
	// Without it, a pass on SQLite reads every record.
	UnknownOnly bool
	// AcceptedFor, if set, is how long an accepted operation may wait for a worker,
	// since it was accepted or last taken. It must be longer than any Work.After and
	// than the backoff. After that, an operation whose class has ItHappened as its
	// Policy.Stale is settled as failed, with an empty result, and does not run.
	// Operations of other classes continue waiting.
	AcceptedFor time.Duration

	// Concurrency is how many records are resolved at a time, and Rate how many in a
	// second. Defaults DefaultConcurrency and DefaultRate; a negative Rate is no limit.
	Concurrency int
	Rate        int
	// Every is how often Run makes a pass, half as much more or less at random.
	// Default DefaultEvery.
	Every time.Duration

	// DryRun calls the verifiers and reports, and changes nothing.
	DryRun bool
	// Audit, if set, is called with each decision before it is carried out, and with its
	// result; calls are concurrent. A decision for which it returns an error is not
	// carried out.
	Audit func(context.Context, Entry) error
	// ErrorLog receives errors, never a key. Default slog.Default().
	ErrorLog *slog.Logger
}

// Report is what a pass has done.
type Report struct {
	Looked    int // expired runs, and operations that waited too long
	Completed int // settled as completed
	Failed    int // settled as failed
	Again     int // to be run again
	Left      int // the verifier cannot know: left unknown, or waiting
	Blind     int // left unknown: the class has a Verify, and the record has neither key nor reference for it (Policy.KeepKey, Options.ByRef)
	Changed   int // by another process in the meantime
	Errors    int // could not be read, verified, audited or resolved; the next pass tries again
}

func (r *Report) resolved(to store.State) {
	switch to {
	case store.Completed:
		r.Completed++
	case store.Failed:
		r.Failed++
	case store.Retryable:
		r.Again++
	default:
		r.Left++
	}
}

// Reconciler resolves expired runs. It is safe for concurrent use.
type Reconciler struct {
	engine *stet.Engine
	store  store.Browser
	o      Options
	pace   pace
}

// New returns a reconciler. Wrong options, and a store that cannot be browsed, are
// errors of kind stet.KindInvalid.
func New(engine *stet.Engine, o Options) (*Reconciler, error) {
	if engine == nil {
		return nil, misuse.Errorf("reconcile: a reconciler needs an engine; stet.New makes one")
	}
	store, ok := store.As[store.Browser](engine.Store())
	switch {
	case !ok:
		return nil, misuse.Errorf("reconcile: the store %T cannot be browsed", engine.Store())
	case o.Concurrency < 0 || o.OlderThan < 0 || o.AcceptedFor < 0 || o.Every < 0:
		return nil, misuse.Errorf("reconcile: Options.Concurrency is %d, OlderThan %v, AcceptedFor %v, Every %v; none may be negative", o.Concurrency, o.OlderThan, o.AcceptedFor, o.Every)
	}
	o.Concurrency = cmp.Or(o.Concurrency, DefaultConcurrency)
	o.Rate = cmp.Or(o.Rate, DefaultRate)
	o.Every = cmp.Or(o.Every, DefaultEvery)
	o.ErrorLog = cmp.Or(o.ErrorLog, slog.Default())
	if o.Audit == nil {
		o.Audit = func(context.Context, Entry) error { return nil }
	}
	r := &Reconciler{engine: engine, store: store, o: o}
	if o.Rate > 0 {
		r.pace.every = time.Second / time.Duration(o.Rate)
	}
	return r, nil
}

// Run makes passes until ctx ends, and returns nil.
func (r *Reconciler) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		report, err := r.Pass(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			r.o.ErrorLog.WarnContext(ctx, "reconcile: the pass broke off", slog.Any("error", err))
		case report.Left > 0 || report.Errors > 0:
			r.o.ErrorLog.WarnContext(ctx, "reconcile: operations wait for an operator", slog.Int("left", report.Left), slog.Int("errors", report.Errors))
		}
		timer.Sleep(ctx, timer.Around(r.o.Every))
	}
	return nil
}

// Pass goes through all records once. It returns an error if ctx has ended or the store
// could not be browsed.
func (r *Reconciler) Pass(ctx context.Context) (Report, error) {
	p := pass{r: r}
	// One by one: some stores have an index of one state only.
	err := p.browse(ctx, store.Unknown, r.o.OlderThan)
	if err == nil && !r.o.UnknownOnly {
		err = p.browse(ctx, store.Running, r.o.OlderThan)
	}
	if err == nil && r.o.AcceptedFor > 0 {
		err = p.browse(ctx, store.Accepted, r.o.AcceptedFor)
	}
	return p.report, err
}

// pass is one call of Pass.
type pass struct {
	r      *Reconciler
	mu     sync.Mutex
	report Report
}

// browse resolves the records of a state, page by page.
func (p *pass) browse(ctx context.Context, of store.State, olderThan time.Duration) error {
	q := store.Query{Scope: p.r.o.Scope, States: []store.State{of}, OlderThan: olderThan, Limit: store.MaxBrowse}
	for tries := 0; ; {
		page, err := p.r.store.Browse(ctx, q)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			if tries++; tries > browseTries || stet.KindOf(err) == stet.KindInvalid {
				return fmt.Errorf("reconcile: the store could not be browsed: %w", err)
			}
			timer.Sleep(ctx, browsePause<<tries)
			continue
		}
		tries = 0
		p.page(ctx, page.Records)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

const (
	browseTries = 4
	browsePause = 50 * time.Millisecond
)

// page resolves records, Concurrency at a time. They are shuffled, so that processes that begin
// together seldom resolve the same record.
func (p *pass) page(ctx context.Context, recs []store.Record) {
	rand.Shuffle(len(recs), func(i, j int) { recs[i], recs[j] = recs[j], recs[i] })
	next := make(chan store.Record)
	var wg sync.WaitGroup
	for range min(p.r.o.Concurrency, len(recs)) {
		wg.Go(func() {
			for rec := range next {
				p.one(ctx, rec)
			}
		})
	}
	defer wg.Wait()
	defer close(next)
	for _, rec := range recs {
		if rec.State == store.Running && rec.LeaseLeft > 0 {
			continue
		}
		select {
		case next <- rec:
		case <-ctx.Done():
			return
		}
	}
}

// pace spreads calls evenly.
type pace struct {
	every time.Duration // 0: no limit

	mu   sync.Mutex
	next time.Time
}

// wait waits for the caller's turn; false if ctx has ended.
func (p *pace) wait(ctx context.Context) bool {
	if p.every == 0 {
		return ctx.Err() == nil
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	turn := p.next.Sub(now)
	p.next = p.next.Add(p.every)
	p.mu.Unlock()
	timer.Sleep(ctx, turn)
	return ctx.Err() == nil
}
