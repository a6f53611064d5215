package async

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/stethttp"
)

// parts are those of an operation that have an effect of their own, and of which
// there must be one each.
var parts = map[string][]string{
	inTx:    {ship},
	safe:    {reserve, ship},
	once:    {reserve, charge, ship},
	outside: {charge},
}

// evidence is what is known in the end.
type evidence struct {
	records map[stet.ID]stet.Record
	effects map[string][]entry // key →
	gave    map[string]string  // key and step → what it gave
	orders  map[string]int     // key → rows of the service's own; nil: it has none
}

// settle waits until nothing is under way any more, as far as that can be.
func (s *storm) settle(ctx context.Context) {
	site, err := s.servers.place.open(ctx, s.f)
	if err != nil {
		return // the judge says so
	}
	defer func() { _ = site.close() }()
	engine, err := stet.New(site.store, stet.Options{SweepEvery: -1})
	if err != nil {
		return
	}
	defer func() { _ = engine.Close() }()
	for quiet := 0; quiet < 2 && ctx.Err() == nil; quiet++ {
		page := func(rec stet.Record) {
			if st, err := engine.Lookup(ctx, rec.ID); err != nil || !ended(st) {
				quiet = -1
			}
		}
		if browse(ctx, site.store, []stet.State{stet.Accepted, stet.Running, stet.Unknown, stet.Retryable}, page) != nil {
			quiet = -1
		}
		pause(ctx, 2*recoverEvery)
	}
}

// ended reports whether nothing more is going to happen to an operation.
func ended(st stet.Status) bool {
	return st.Record.State.Settled() || st.Record.State == stet.Unknown && st.Name == once && st.Doubt != ""
}

func browse(ctx context.Context, store stet.Browser, states []stet.State, f func(stet.Record)) error {
	for q := (stet.Query{States: states, Limit: stet.MaxBrowse}); ; {
		page, err := store.Browse(ctx, q)
		if err != nil {
			return err
		}
		for _, rec := range page.Records {
			f(rec)
		}
		if q.After = page.Next; q.After == "" {
			return nil
		}
	}
}

// judge compares.
func (s *storm) judge(ctx context.Context) (err error) {
	site, err := s.servers.place.open(ctx, s.f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.close()) }()
	engine, err := stet.New(site.store, stet.Options{SweepEvery: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	ev, err := s.gather(ctx, site)
	if err != nil {
		return err
	}
	scope, _ := stethttp.SingleTenant(nil)
	for _, op := range s.clients.all() {
		s.rep.Operations++
		s.rep.Told += op.unknowns
		for _, wrong := range op.wrong {
			s.accuse(op, "%s", wrong)
		}
		id := engine.ID(scope, op.key)
		rec, ok := ev.records[id]
		if !ok {
			s.accuse(op, "it was lost")
			continue
		}
		st, err := engine.Lookup(ctx, id)
		if err != nil {
			return err
		}
		delete(ev.records, id)
		s.rep.Attempts += rec.Attempt
		s.compare(op, st, ev)
		delete(ev.effects, op.key)
		delete(ev.orders, op.key)
	}
	for id, rec := range ev.records {
		s.rep.Violations = append(s.rep.Violations, fmt.Sprintf("there is a record that nobody has ordered: %v, %v", id, rec.State))
	}
	for key := range ev.effects {
		s.rep.Violations = append(s.rep.Violations, "there is an effect that nobody has ordered: "+key)
	}
	for key := range ev.orders {
		s.rep.Violations = append(s.rep.Violations, "there is an order that nobody has made: "+key)
	}
	return nil
}

// gather collects what is stored, and what has happened.
func (s *storm) gather(ctx context.Context, site *site) (ev evidence, err error) {
	ev = evidence{records: make(map[stet.ID]stet.Record), effects: make(map[string][]entry), gave: make(map[string]string)}
	if err := browse(ctx, site.store, nil, func(rec stet.Record) { ev.records[rec.ID] = rec }); err != nil {
		return ev, err
	}
	ledger, err := openLedger(s.servers.place.Dir)
	if err != nil {
		return ev, err
	}
	defer func() { err = errors.Join(err, ledger.close()) }()
	lines, err := ledger.entries()
	if err != nil {
		return ev, err
	}
	rows, err := site.effects(ctx)
	if err != nil {
		return ev, err
	}
	for _, e := range slices.Concat(lines, rows) {
		switch e.Kind {
		case effect:
			s.rep.Effects++
			ev.effects[e.Key] = append(ev.effects[e.Key], e)
		case gave:
			was, ok := ev.gave[e.Key+e.What]
			if ok && was != e.ID {
				s.rep.Violations = append(s.rep.Violations, fmt.Sprintf("the step %s of %s gave %s, and then %s", e.What, e.Key, was, e.ID))
			}
			ev.gave[e.Key+e.What] = e.ID
		case checked:
			s.rep.Verified++
		case stopped:
			s.rep.Stops++
		case died:
			s.rep.At[fault.Point(e.What)]++
		}
	}
	if s.f.acceptsInTx() {
		ev.orders, err = site.orders(ctx)
	}
	return ev, err
}

func (s *storm) accuse(op *operation, format string, args ...any) {
	s.rep.Violations = append(s.rep.Violations, op.kind+" "+op.key+": "+fmt.Sprintf(format, args...))
}

// compare judges one operation: what its record says, against what has happened.
func (s *storm) compare(op *operation, st stet.Status, ev evidence) {
	if ev.orders != nil && ev.orders[op.key] != 1 {
		s.accuse(op, "it was accepted with %d orders", ev.orders[op.key])
	}
	count := make(map[string][]string) // part → effects
	for _, e := range ev.effects[op.key] {
		count[e.What] = append(count[e.What], e.ID)
	}
	for what, ids := range count {
		if len(ids) > 1 {
			s.accuse(op, "%s has %d effects", what, len(ids))
		}
		if !slices.Contains(parts[op.kind], what) {
			s.accuse(op, "%s is none of its parts", what)
		}
	}
	switch {
	case st.Record.State == stet.Completed:
		s.rep.Completed++
		s.compareOutcome(op, st, count)
	case op.cancels && st.Record.State == stet.Failed:
		s.rep.Cancelled++
		s.compareCancelled(op, st, count)
	case op.kind == once && st.Record.State == stet.Unknown && st.Doubt == charge:
		s.rep.Unknown++
		if len(count[reserve]) != 1 || len(count[ship]) > 0 {
			s.accuse(op, "its charge is in doubt, with %d effects before it, and %d after it", len(count[reserve]), len(count[ship]))
		}
		if op.outcome != nil {
			s.accuse(op, "its outcome is not known, and a client was told one: %s", op.outcome)
		}
	default:
		s.accuse(op, "it is %v in the end, after %d attempts; in doubt: %q", st.Record.State, st.Record.Attempt, st.Doubt)
	}
}

// compareCancelled judges an operation that was cancelled: what is one write, or
// one charge, was not done, and of steps none that is in doubt was begun.
func (s *storm) compareCancelled(op *operation, st stet.Status, count map[string][]string) {
	var text string
	if err := st.Outcome.Decode(&text); !errors.Is(err, stet.ErrFailed) || !strings.Contains(err.Error(), stet.ErrCancelled.Error()) {
		s.accuse(op, "it failed: %s", st.Outcome.Result)
	}
	if whole := op.kind == inTx || op.kind == outside; whole && len(count) > 0 || st.Doubt != "" {
		s.accuse(op, "it was cancelled, with the effects %v, and %q in doubt", count, st.Doubt)
	}
}

// compareOutcome judges a completed operation.
func (s *storm) compareOutcome(op *operation, st stet.Status, count map[string][]string) {
	var r receipt
	if err := st.Outcome.Decode(&r); err != nil || r.Key != op.key {
		s.accuse(op, "its outcome is %s: %v", st.Outcome.Result, err)
		return
	}
	for _, what := range parts[op.kind] {
		switch ids := count[what]; {
		case len(ids) == 0:
			s.accuse(op, "it has completed without %s", what)
		case !slices.Contains(r.IDs, ids[0]):
			s.accuse(op, "its outcome is of %v, and %s was %s", r.IDs, what, ids[0])
		}
	}
	if op.outcome != nil && string(op.outcome) != string(st.Outcome.Result) {
		s.accuse(op, "clients were told %s, and it is %s", op.outcome, st.Outcome.Result)
	}
	if op.outcome == nil && op.kind != once {
		s.accuse(op, "no client was told its outcome")
	}
}
