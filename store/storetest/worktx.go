package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// workCase is what a check of work in transactions works with.
type workCase[Tx any] struct {
	*txCase[Tx]
	store store.WorkTxStore[Tx]
}

// workTxChecks hold a store to what store.WorkTxStore asks for beyond store.TxStore
// and store.WorkStore.
func workTxChecks[Tx any](h TxHarness[Tx]) []check {
	with := func(run func(*workCase[Tx])) func(*fixture) {
		return func(f *fixture) {
			tx, _ := store.As[store.TxStore[Tx]](f.store)
			s, _ := store.As[store.WorkTxStore[Tx]](f.store)
			run(&workCase[Tx]{&txCase[Tx]{f, h, tx}, s})
		}
	}
	return []check{
		{"AcceptTx commits with the caller's rows, or has no effect", "an order without its job is lost, a job without its order is a ghost.",
			with((*workCase[Tx]).acceptTx)},
		{"AcceptTx in each state follows the state machine", "what Claim must not grant must not be queued either.",
			with((*workCase[Tx]).acceptTxInEachState)},
		{"AcceptTx waits for a transaction that is accepting the same key", "both callers get one acceptance, which is durable.",
			with((*workCase[Tx]).acceptTxWaits)},
		{"while a transaction has accepted one key, others can be claimed and settled", "one customer's slow transaction must not stop the service.",
			with((*workCase[Tx]).othersGoOnWithWork)},
		{"an acceptance or a claim beside AcceptTx does not come through with it", "both lead to an execution.",
			with((*workCase[Tx]).acceptTxBesideOthers)},
		{"SaveTx commits with the caller's rows, or has no effect", "a step's effect and its stored result must not exist alone.",
			with((*workCase[Tx]).saveTx)},
		{"SaveTx compares the fence and the version", "a zombie's rows must not be committed as a step of its successor's.",
			with((*workCase[Tx]).saveTxFenced)},
		{"InTx commits all that was written, or nothing", "the rollback is what proves that a retry is safe.",
			with((*workCase[Tx]).inTx)},
		{"a stale fence in InTx writes nothing", "a zombie's rows must not be committed.",
			with((*workCase[Tx]).inTxFenced)},
		{"a worker's rows, outcome and messages are committed together, once", "this is what makes the work done once.",
			with((*workCase[Tx]).finishTx)},
		{"an open transaction of a stopped process cannot commit after its run was taken again", "the rollback is what proves that a repetition is safe.",
			with((*workCase[Tx]).stoppedInTx)},
		{"an expired run that may be repeated is accepted again in transactions, too", "who finds it there must not say that it is not known.",
			with((*workCase[Tx]).deadRunInTx)},
		{"a step's rows and its result are committed together, once", "a later attempt continues after it.",
			with((*workCase[Tx]).stepTx)},
	}
}

// acceptIn is accept in a transaction.
func (c *workCase[Tx]) acceptIn(tx Tx, req store.ClaimRequest) store.Record {
	c.Helper()
	rec, err := c.store.AcceptTx(c.ctx, tx, req, workOf(req.ID), 0)
	if err != nil {
		c.Errorf("AcceptTx: %v", err)
	}
	return rec
}

func (c *workCase[Tx]) acceptTx() {
	fresh, again := c.request(c.long), c.request(c.long)
	c.release(c.grant(again).Claim(), c.keep)
	again = byAnother(again)
	for _, commit := range []bool{false, true} {
		for _, req := range []store.ClaimRequest{fresh, again} {
			was := c.look(req.ID)
			var rec store.Record
			row := c.within(commit, func(tx Tx) { rec = c.acceptIn(tx, req) })
			if !accepted(rec, req) || rec.Fence <= was.Fence || rec.Attempt != was.Attempt {
				c.Errorf("AcceptTx of a key that is %s returned %s", show(was), show(rec))
			}
			c.bare("AcceptTx", rec)
			if !commit {
				c.rows("after a rollback", row, 0)
				c.untouched("AcceptTx that was rolled back", was)
				c.isDue("after a rollback")
				continue
			}
			c.rows("after the commit", row, 1)
			c.unchanged("the commit of AcceptTx", rec)
			c.isDue("after the commit", req.ID)
		}
	}
	c.within(true, func(tx Tx) {
		if rec := c.acceptIn(tx, fresh); !accepted(rec, fresh) {
			c.Errorf("a second AcceptTx by its owner returned %s", show(rec))
		}
	})
	if rec := c.takes(byAnother(fresh)); !bytes.Equal(rec.Work, workOf(fresh.ID)) || rec.Attempt != 1 {
		c.Errorf("accepted in a transaction and taken, it is %s, with the work %s", show(rec), brief(rec.Work))
	}
	queued := c.request(c.long)
	queued.Queued = c.long
	c.within(true, func(tx Tx) { c.acceptIn(tx, queued) })
	c.isDue("accepted in a transaction, and left to a queue")
	c.takes(byAnother(queued))
}

func (c *workCase[Tx]) acceptTxInEachState() {
	for _, s := range c.situations() {
		other := byAnother(s.req)
		other.Fingerprint = fingerprintB
		if s.state != store.None {
			row := c.within(false, func(tx Tx) {
				rec, err := c.store.AcceptTx(c.ctx, tx, other, workOf(s.req.ID), 0)
				if d := diff(s.rec, rec); !errors.Is(err, store.ErrMismatch) || d != "" {
					c.Errorf("AcceptTx with another fingerprint, of a key that is %s: %v; %s", s.name, err, d)
				}
			})
			c.rows(s.name, row, 0)
			c.untouched("AcceptTx with another fingerprint", s.whole)
		}
		req := byAnother(s.req)
		var rec store.Record
		row := c.within(true, func(tx Tx) { rec = c.acceptIn(tx, req) })
		what := "AcceptTx of a key that is " + s.name
		_, free := s.state.Next(store.VerbAccept)
		switch {
		case free:
			if !accepted(rec, req) || rec.Fence <= s.claim.Fence || rec.Attempt != s.rec.Attempt {
				c.Errorf("%s: want it accepted with a fence above %d; got %s", what, s.claim.Fence, show(rec))
			}
		case s.lapsed:
			if rec.State != store.Unknown || rec.Fence != s.claim.Fence {
				c.Errorf("%s: want unknown under its fence %d; got %s", what, s.claim.Fence, show(rec))
			}
		default:
			if d := diff(s.rec, rec); d != "" {
				c.Errorf("%s: want the record unchanged; %s", what, d)
			}
			c.untouched(what, s.whole)
		}
		c.unchanged("the commit of "+what, rec)
		c.rows(what, row, 1) // they are the caller's, who commits
	}
}

func (c *workCase[Tx]) acceptTxWaits() {
	for i := range 6 {
		commit := i%2 == 0
		first := c.request(c.long)
		second := byAnother(first)
		var told store.Record
		done := make(chan error, 1)
		c.within(commit, func(tx Tx) {
			c.acceptIn(tx, first)
			go func() {
				defer close(done)
				c.within(true, func(tx Tx) { told = c.acceptIn(tx, second) })
			}()
			c.beside()
		})
		c.woken("a transaction that waits for another to end", done)
		winner := first
		if !commit {
			winner = second
		}
		if !accepted(told, winner) {
			c.Errorf("the first transaction being committed is %v; the second got %s", commit, show(told))
		}
		c.unchanged("both transactions", told)
	}
}

func (c *workCase[Tx]) acceptTxBesideOthers() {
	others := map[string]func(store.ClaimRequest) (store.Record, error){
		"Claim": func(req store.ClaimRequest) (store.Record, error) { return c.store.Claim(c.ctx, req) },
		"Accept": func(req store.ClaimRequest) (store.Record, error) {
			return c.can.works.Accept(c.ctx, req, workOf(req.ID), 0)
		},
		"RunTx": func(req store.ClaimRequest) (store.Record, error) {
			rec, _, err := c.run(req, stet.NewKey(), completed("x"))
			return rec, err
		},
	}
	for name, call := range others {
		for range 3 {
			mine := c.request(c.long)
			theirs := byAnother(mine)
			var told store.Record
			var err error
			done := make(chan error, 1)
			c.within(true, func(tx Tx) {
				c.acceptIn(tx, mine)
				go func() {
					defer close(done)
					told, err = call(theirs)
				}()
				c.beside()
			})
			c.woken(name+" beside AcceptTx", done)
			now := c.read(mine.ID)
			if err != nil || told.Owner == theirs.Owner || !accepted(now, mine) {
				c.Errorf("%s beside AcceptTx got %s, %v; the record is %s", name, show(told), err, show(now))
			}
		}
	}
}

func (c *workCase[Tx]) saveTx() {
	req, taken := c.taken(c.long)
	for _, rec := range []store.Record{taken, c.grant(c.request(c.long))} {
		c.save(rec.Claim(), version(1, "before"))
		was := c.look(rec.ID)
		for _, commit := range []bool{false, true} {
			row := c.within(commit, func(tx Tx) {
				if err := c.store.SaveTx(c.ctx, tx, rec.Claim(), version(2, "within"), false); err != nil {
					c.Errorf("SaveTx: %v", err)
				}
			})
			if !commit {
				c.rows("after a rollback", row, 0)
				c.untouched("SaveTx that was rolled back", was)
				continue
			}
			c.rows("after the commit", row, 1)
			want := was
			want.Notes = version(2, "within")
			c.untouched("the commit of SaveTx", want)
		}
	}
	c.giveBack(taken.Claim(), 0)
	if next := c.takes(byAnother(req)); !sameNotes(next.Notes, version(2, "within")) {
		c.Errorf("the next attempt got the notes %s", noted(next.Notes))
	}
}

func (c *workCase[Tx]) saveTxFenced() {
	for _, s := range c.situations() {
		try := func(what string, cl store.Claim, notes store.Notes) {
			row := c.within(false, func(tx Tx) {
				c.fenced("SaveTx "+what+" of a key that is "+s.name, c.store.SaveTx(c.ctx, tx, cl, notes, false))
			})
			c.untouched("SaveTx "+what, s.whole)
			c.rows("SaveTx "+what, row, 0)
		}
		try("with an older fence", s.stale, version(255, "zombie"))
		if s.state != store.Running {
			try("with the newest fence", s.claim, version(255, "late"))
		} else if s.whole.Notes.Version != 0 {
			try("with a lesser version", s.claim, version(0, "delayed"))
		}
	}
}

// panics calls f and returns its error, or that with which it panicked.
func panics(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = p.(error)
		}
	}()
	return f()
}

func (c *workCase[Tx]) inTx() {
	mine := errors.New("out of stock")
	for name, how := range map[string]func() error{
		"an error":  func() error { return mine },
		"a panic":   func() error { panic(mine) },
		"no reason": func() error { return nil },
	} {
		row, req, calls := stet.NewKey(), c.request(c.long), 0
		err := panics(func() error {
			return c.store.InTx(c.ctx, func(ctx context.Context, tx Tx) error {
				calls++
				if err := c.h.Write(ctx, tx, row); err != nil {
					return err
				}
				if _, err := c.store.AcceptTx(ctx, tx, req, workOf(req.ID), 0); err != nil {
					return err
				}
				return how()
			})
		})
		want, state, rows := mine, store.None, 0
		if name == "no reason" {
			want, state, rows = nil, store.Accepted, 1
		}
		if !errors.Is(err, want) || calls != 1 {
			c.Errorf("%s came out of InTx as: %v, after %d calls", name, err, calls)
		}
		c.rows("InTx that ended with "+name, row, rows)
		if rec := c.read(req.ID); rec.State != state {
			c.Errorf("InTx that ended with %s left %s", name, show(rec))
		}
	}
	row := stet.NewKey()
	err := c.store.InTx(ended(c.ctx), func(ctx context.Context, tx Tx) error { return c.h.Write(ctx, tx, row) })
	if err == nil {
		c.Error("InTx with a context that has ended returned no error")
	}
	c.rows("InTx with a context that has ended", row, 0)
}

func (c *workCase[Tx]) inTxFenced() {
	req, rec := c.taken(c.long)
	c.giveBack(rec.Claim(), 0)
	c.takes(byAnother(req))
	was := c.look(req.ID)
	for name, write := range map[string]func(context.Context, Tx) error{
		"SettleTx": func(ctx context.Context, tx Tx) error {
			return c.store.SettleTx(ctx, tx, rec.Claim(), with("zombie", completed("zombie")), c.keep)
		},
		"SaveTx": func(ctx context.Context, tx Tx) error {
			return c.store.SaveTx(ctx, tx, rec.Claim(), version(255, "zombie"), false)
		},
	} {
		row := stet.NewKey()
		err := c.store.InTx(c.ctx, func(ctx context.Context, tx Tx) error {
			if err := c.h.Write(ctx, tx, row); err != nil {
				return err
			}
			return write(ctx, tx)
		})
		c.fenced(name+" in InTx with a stale fence", err)
		c.rows(name+" in InTx with a stale fence", row, 0)
		c.untouched(name+" in InTx with a stale fence", was)
	}
}

// accepting returns an engine with an operation that it has accepted.
func (c *workCase[Tx]) accepting() (*stet.Engine, stet.Item) {
	c.Helper()
	e := c.engine(c.store, stet.Policy{})
	st, err := e.Accept(c.ctx, c.service().op, stet.Work{Name: "ship", Payload: []byte("order 7")})
	if err != nil || !st.New {
		c.Fatalf("Engine.Accept: %+v, %v", st, err)
	}
	return e, stet.Item{ID: st.Record.ID, Name: "ship"}
}

// begins takes the operation.
func (c *workCase[Tx]) begins(e *stet.Engine, it stet.Item) *stet.Lease {
	c.Helper()
	run, err := e.Take(c.ctx, it)
	if err != nil {
		c.Fatalf("Engine.Take: %v", err)
	}
	return run
}

func (c *workCase[Tx]) finishTx() {
	e, it := c.accepting()
	finish := func(run *stet.Lease, row string, fails error) error {
		return c.tx(e, c.store).Finish(c.ctx, run, func(ctx context.Context, tx Tx) (stet.Outcome, error) {
			if err := c.h.Write(ctx, tx, row); err != nil {
				return stet.Outcome{}, err
			}
			return stet.Outcome{Body: []byte("shipped")}, fails
		})
	}
	mine, row := errors.New("out of stock"), stet.NewKey()
	zombie := c.begins(e, it)
	if err := finish(zombie, row, mine); !errors.Is(err, mine) {
		c.Errorf("FinishTx: %v; want the function's own error", err)
	}
	c.rows("FinishTx that was rolled back", row, 0)
	c.release(c.read(zombie.ID()).Claim(), c.keep) // by an operator, say
	if err := finish(zombie, row, nil); !errors.Is(err, store.ErrFenced) {
		c.Errorf("FinishTx of a returned run: %v; want ErrFenced", err)
	}
	c.rows("FinishTx of a stale run", row, 0)
	_ = zombie.Release(c.ctx, stet.Again{})

	run := c.begins(e, it)
	if c.can.outbox != nil {
		if err := run.Emit(stet.Message{To: "orders", Body: []byte("shipped")}); err != nil {
			c.Errorf("Emit: %v", err)
		}
	}
	if err := finish(run, row, nil); err != nil {
		c.Errorf("FinishTx: %v", err)
	}
	c.rows("FinishTx", row, 1)
	if again := c.begins(e, it); !again.Replayed() || string(again.Outcome().Body) != "shipped" {
		c.Errorf("a take of a finished operation is replayed: %v, %s", again.Replayed(), brief(again.Outcome().Body))
	}
	if c.can.outbox == nil {
		return
	}
	var due [][]stet.Message
	_, err := e.Relay(c.ctx, 10, c.long, func(operations [][]stet.Message, _ func(int, error)) error {
		due = operations
		return nil
	})
	if err != nil || len(due) != 1 || len(due[0]) != 1 || string(due[0][0].Body) != "shipped" {
		c.Errorf("due to be sent are %+v, %v", due, err)
	}
}

func (c *workCase[Tx]) stepTx() {
	e, it := c.accepting()
	row, runs := stet.NewKey(), 0
	reserve := func(run *stet.Lease, fails error) (string, error) {
		return stet.StepTx(run.Context(), c.tx(e, c.store), "reserve", func(ctx context.Context, tx Tx) (string, error) {
			runs++
			return fmt.Sprint("run ", runs), errors.Join(c.h.Write(ctx, tx, row), fails)
		})
	}
	mine := errors.New("out of stock")
	zombie := c.begins(e, it)
	if _, err := reserve(zombie, mine); !errors.Is(err, mine) {
		c.Errorf("StepTx: %v; want the function's own error", err)
	}
	c.rows("StepTx that was rolled back", row, 0)
	if v, err := reserve(zombie, nil); err != nil || v != "run 2" {
		c.Errorf("StepTx: %q, %v", v, err)
	}
	c.release(c.read(zombie.ID()).Claim(), c.keep)         // by an operator, say
	next := c.begins(c.engine(c.store, stet.Policy{}), it) // another process
	if v, err := reserve(next, nil); err != nil || v != "run 2" || runs != 2 {
		c.Errorf("StepTx in the next attempt: %q, %v, %d runs; want the result of the first", v, err, runs)
	}
	c.rows("StepTx in two attempts", row, 1)
	if _, err := stet.StepTx(zombie.Context(), c.tx(e, c.store), "ship", func(ctx context.Context, tx Tx) (string, error) {
		return "zombie", c.h.Write(ctx, tx, row)
	}); !errors.Is(err, store.ErrFenced) {
		c.Errorf("StepTx of a stale run: %v; want ErrFenced", err)
	}
	c.rows("StepTx of a stale run", row, 1)
	_ = zombie.Release(c.ctx, stet.Again{})
	_ = next.Release(c.ctx, stet.Again{})
}
