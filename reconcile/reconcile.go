// Package reconcile finds out what became of dead runs, out of band: it goes
// through the records whose outcome nobody knows, asks a verifier who can look in
// the business tables or ask the processor, and resolves each under the fence that
// it was shown.
//
//	r, err := reconcile.New(engine, reconcile.Options{
//		Verify: func(ctx context.Context, st stet.Status) (stet.Verdict, error) { … },
//	})
//	report, err := r.Pass(ctx)
//
// A run is dead when its record is unknown, or running under a lease that has run
// out. Any number of processes may reconcile one store at the same time: a verdict
// is written under the fence of the record that it is about, so it is refused if
// the record has changed since, and of two verdicts the first stands. A dead run is
// parked before its verifier is asked, so what it may note down after all is refused.
//
// # What becomes of a record
//
//	the verifier                     the operation
//	ItHappened                       settled with that outcome
//	ItDidNotHappen                   accepted: handed to a worker again;
//	                                 else retryable: the next retry runs it. A step in doubt
//	                                 runs again then, and one that was done does not
//	MayRunAgain                      the same, unless a step is in doubt: left unknown
//	CannotKnow                       the class's Policy.Verify is asked, if the record names
//	                                 its operation (accepted ones do); then Policy.Stale decides:
//	                                 StaleTakeOver is MayRunAgain, StaleFail settles it as
//	                                 failed with an empty result (504 over HTTP), and StalePark
//	                                 leaves it unknown
//	an error                         left as it is, and asked about again in the next pass
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stet-go/stet"
)

// Defaults of Options.
const (
	// DefaultConcurrency is how many records are looked into at a time.
	DefaultConcurrency = 8
	// DefaultRate is how many records are looked into in a second.
	DefaultRate = 100
	// DefaultEvery is how often Run makes a pass.
	DefaultEvery = time.Minute
)

// Verifier finds out what became of a dead run. st.Record is the record, without
// its result; st.Op and st.Name say what was asked for, if it was accepted, and
// st.Doubt which step it may have died in. It may be asked more than once about a
// run, and by several processes at a time; its context ends after the class's
// Policy.VerifyTimeout. ItDidNotHappen says that the run is dead and not just
// paused: what it says did not happen is done again.
type Verifier func(ctx context.Context, st stet.Status) (stet.Verdict, error)

// Options configure a Reconciler. The zero value applies the policies of the
// engine's classes.
type Options struct {
	// Verify is asked about each record. Default: it cannot know.
	Verify Verifier
	// Select, if set, says which records are looked into. Default: all.
	Select func(stet.Status) bool
	// Class names the policy of a record that does not say it: of an operation
	// that was not accepted. Default: Options.Policy of the engine.
	Class func(stet.Record) string
	// Scope, unless it is zero, is the stet.DigestScope of the only scope.
	Scope stet.ID
	// OlderThan leaves out records that were claimed less than that ago.
	OlderThan time.Duration
	// ParkedOnly leaves dead runs that are not parked yet to the store's sweep:
	// finding them means, on SQLite, looking at every record.
	ParkedOnly bool
	// AcceptedFor, if set, is how long an accepted operation may wait that no
	// worker has taken, since it was accepted or last taken: longer than any
	// Work.After, and than backoff. If its class says StaleFail it is settled as
	// failed, with an empty result; it does not run then. Other classes let it
	// wait: it stays due.
	AcceptedFor time.Duration

	// Concurrency is how many records are looked into at a time, and Rate how
	// many in a second. Defaults DefaultConcurrency and DefaultRate; a negative
	// Rate is no limit.
	Concurrency int
	Rate        int
	// Every is how often Run makes a pass, half as much more or less at random.
	// Default DefaultEvery.
	Every time.Duration

	// DryRun asks and reports, and changes nothing.
	DryRun bool
	// Audit, if set, is told of each decision before it is carried out, and of
	// what came of it; calls are concurrent. What it refuses is not done.
	Audit func(context.Context, Entry) error
	// Progress, if set, is told how far a pass has come, after each page of
	// records.
	Progress func(Report)
	// ErrorLog gets what goes wrong, never a key. Default slog.Default().
	ErrorLog *slog.Logger
}

// Report is what a pass has done.
type Report struct {
	Looked    int // dead runs, and operations that waited too long
	Completed int // settled as completed
	Failed    int // settled as failed
	Again     int // to be run again
	Left      int // nobody knows: left unknown, or to wait
	Changed   int // by somebody else meanwhile
	Errors    int // could not be looked into, verified, written down or resolved; the next pass tries again
}

func (r *Report) count(to stet.State) {
	switch to {
	case stet.Completed:
		r.Completed++
	case stet.Failed:
		r.Failed++
	case stet.Retryable:
		r.Again++
	default:
		r.Left++
	}
}

// Reconciler looks after dead runs. It is safe for concurrent use.
type Reconciler struct {
	engine *stet.Engine
	store  stet.Browser
	o      Options
	pace   pace
}

// New returns a reconciler. Wrong options, and a store that cannot be browsed, are
// errors of kind stet.ErrInvalid.
func New(engine *stet.Engine, o Options) (*Reconciler, error) {
	if engine == nil {
		return nil, invalid("a reconciler needs an engine; stet.New makes one")
	}
	store, ok := engine.Store().(stet.Browser)
	switch {
	case !ok:
		return nil, invalid("the store %T cannot be browsed", engine.Store())
	case o.Concurrency < 0 || o.OlderThan < 0 || o.AcceptedFor < 0 || o.Every < 0:
		return nil, invalid("Options.Concurrency is %d, OlderThan %v, AcceptedFor %v, Every %v; none may be negative", o.Concurrency, o.OlderThan, o.AcceptedFor, o.Every)
	}
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Rate == 0 {
		o.Rate = DefaultRate
	}
	if o.Every == 0 {
		o.Every = DefaultEvery
	}
	if o.ErrorLog == nil {
		o.ErrorLog = slog.Default()
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
		sleep(ctx, r.o.Every/2+rand.N(r.o.Every))
	}
	return nil
}

// Pass looks into every record once. The error says why it broke off: ctx has
// ended, or the store could not be browsed.
func (r *Reconciler) Pass(ctx context.Context) (Report, error) {
	p := pass{r: r}
	// One by one: some stores have an index of one state only.
	err := p.browse(ctx, stet.Unknown, r.o.OlderThan)
	if err == nil && !r.o.ParkedOnly {
		err = p.browse(ctx, stet.Running, r.o.OlderThan)
	}
	if err == nil && r.o.AcceptedFor > 0 {
		err = p.browse(ctx, stet.Accepted, r.o.AcceptedFor)
	}
	return p.report, err
}

// pass is one call of Pass.
type pass struct {
	r      *Reconciler
	mu     sync.Mutex
	report Report
}

// browse looks into the records of a state, page by page.
func (p *pass) browse(ctx context.Context, of stet.State, olderThan time.Duration) error {
	q := stet.Query{Scope: p.r.o.Scope, States: []stet.State{of}, OlderThan: olderThan, Limit: stet.MaxBrowse}
	for tries := 0; ; {
		page, err := p.r.store.Browse(ctx, q)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			if tries++; tries > browseTries || errors.Is(err, stet.ErrInvalid) {
				return fmt.Errorf("reconcile: the store could not be browsed: %w", err)
			}
			sleep(ctx, browsePause<<tries)
			continue
		}
		tries = 0
		p.page(ctx, page.Records)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if p.r.o.Progress != nil {
			p.r.o.Progress(p.report) // nothing else runs between pages
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

// page looks into records, some at a time. They are shuffled, so that processes
// that begin together seldom meet.
func (p *pass) page(ctx context.Context, recs []stet.Record) {
	rand.Shuffle(len(recs), func(i, j int) { recs[i], recs[j] = recs[j], recs[i] })
	next := make(chan stet.Record)
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
		if rec.State == stet.Running && rec.LeaseLeft > 0 {
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
	sleep(ctx, turn)
	return ctx.Err() == nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func invalid(format string, args ...any) error {
	return &stet.Error{Kind: stet.ErrInvalid, Execution: stet.NotExecuted, Cause: fmt.Errorf("reconcile: "+format, args...)}
}
