package async

import (
	"context"
	"errors"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/crash"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// scope is that of everybody.
var scope, _ = stethttp.SingleTenant(nil)

// parts are those of an operation that have an effect of their own, and of which
// there must be one each.
var parts = map[string][]string{
	inTx:    {ship},
	safe:    {reserve, ship},
	once:    {reserve, charge, ship},
	outside: {charge},
}

// law is what accepted operations are held to: all end, and what may stay unknown
// is a step that must not run twice, of which it is not known whether it ran.
func (f flavour) law() crashtest.Law {
	l := crashtest.Law{
		Parts: parts,
		Ends: func(asked, looked crashtest.Event) bool {
			switch looked.State {
			case store.Completed.String():
				return true
			case store.Failed.String():
				return asked.Cancels
			}
			return looked.State == store.Unknown.String() && asked.Name == once && looked.OpenStep == charge
		},
		Unknown: func(kind string) bool { return kind == once },
	}
	if f.acceptsInTx() {
		l.Always = ordered
	}
	return l
}

// settle waits until nothing is in progress any more, as far as that can be.
func (s *loadTest) settle(ctx context.Context, site *crashtest.Site, engine *stet.Engine) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTimeout, errors.New("accepted operations did not end in time"))
	defer cancel()
	for quiet := 0; quiet < 2 && ctx.Err() == nil; quiet++ {
		page := func(rec store.Record) {
			if st, err := engine.Lookup(ctx, rec.ID); err != nil || !ended(st) {
				quiet = -1
			}
		}
		if browse(ctx, site.Store, []store.State{store.Accepted, store.Running, store.Unknown, store.Retryable}, page) != nil {
			quiet = -1
		}
		_ = crash.Pause(ctx, 2*recoverEvery)
	}
	return context.Cause(ctx)
}

// ended reports whether nothing more is going to happen to an operation.
func ended(st stet.Status) bool {
	return st.Record.State.Settled() || st.Record.State == store.Unknown && st.Name == once && st.OpenStep != ""
}

func browse(ctx context.Context, st store.Browser, states []store.State, f func(store.Record)) error {
	for q := (store.Query{States: states, Limit: store.MaxBrowse}); ; {
		page, err := st.Browse(ctx, q)
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

// judge collects the facts, and calls the judge.
func (s *loadTest) judge(ctx context.Context, site *crashtest.Site, engine *stet.Engine) (err error) {
	var trial crashtest.Trial
	if trial.Events, err = crashtest.ReadHistory(s.place.Dir); err != nil {
		return err
	}
	looked := make(map[string]bool)
	err = browse(ctx, site.Store, nil, func(rec store.Record) {
		st, lookupErr := engine.Lookup(ctx, rec.ID)
		err = errors.Join(err, lookupErr)
		trial.Events = append(trial.Events, end(rec.ID, st))
		looked[rec.ID.String()] = true
	})
	for _, op := range s.clients.all() {
		if id := crashtest.OperationID(scope, op.key); !looked[id] {
			trial.Events = append(trial.Events, end(engine.ID(scope, op.key), stet.Status{}))
		}
	}
	if err == nil {
		trial.Effects, err = crashtest.ReadLedger(s.place.Dir, crashtest.Happened)
	}
	if err == nil {
		trial.Gave, err = crashtest.ReadLedger(s.place.Dir, crashtest.Gave)
	}
	if err == nil && site.Effects != nil {
		var rows []crashtest.Effect
		rows, err = site.Effects(ctx)
		trial.Effects = append(trial.Effects, rows...)
	}
	if err != nil {
		return err
	}
	verified, err := crashtest.ReadLedger(s.place.Dir, crashtest.Verified)
	s.rep.Verified, s.rep.Resolution = len(verified), crashtest.Judge(trial, s.f.law())
	return err
}

// end is what a judge sees of a record.
func end(id store.ID, st stet.Status) crashtest.Event {
	ev := crashtest.Seen(crashtest.Looked, st.Record)
	ev.ID, ev.OpenStep, ev.Digest = id.String(), st.OpenStep, crashtest.Digest(st.Outcome.Body)
	switch st.Record.State {
	case store.Completed:
		var r receipt
		ev.Of = []string{}
		if st.Outcome.Decode(&r) == nil {
			ev.Of = append(ev.Of, r.IDs...)
		}
	case store.Failed:
		var text string
		err := st.Outcome.Decode(&text)
		if ev.Why = crashtest.WhyCancelled; stet.KindOf(err) != stet.KindFailed || !strings.Contains(err.Error(), stet.ErrCancelled.Error()) {
			ev.Why = string(st.Outcome.Body)
		}
	}
	return ev
}
