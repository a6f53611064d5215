package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// TxHarness is a Harness for a store with transactions of type Tx. All of its
// functions are required, except the optional ones of Harness.
type TxHarness[Tx any] struct {
	// Harness makes the stores; what its New returns is a store.TxStore[Tx].
	Harness
	// Write writes a business row of that name within tx. Nothing may keep
	// a name from being written twice.
	Write func(ctx context.Context, tx Tx, name string) error
	// Rows returns how many rows of that name are committed in s.
	Rows func(t testing.TB, s store.TxStore[Tx], name string) int
	// Begin begins a transaction of the caller's own in s. end commits it or
	// rolls it back.
	Begin func(t testing.TB, s store.TxStore[Tx]) (tx Tx, end func(commit bool) error)
	// OneWriter says that whatever writes to a store waits while a transaction of
	// it is open, as in an embedded database. Callers with other keys must come
	// through once it has ended, then; of any other store, while it is open.
	OneWriter bool
}

// RunTx holds the store that h makes to what store.TxStore asks for beyond
// store.Store, which is tested by Run; and to store.WorkTxStore if it is one.
func RunTx[Tx any](t *testing.T, h TxHarness[Tx]) {
	t.Helper()
	h.fill(t)
	if h.Write == nil || h.Rows == nil || h.Begin == nil {
		t.Fatal("storetest: TxHarness.Write, Rows and Begin must be set")
	}
	for _, c := range txChecks(h, h.New(t)) {
		t.Run(c.name, func(t *testing.T) { c.test(t, h.Harness) })
	}
}

// txCase is what a check of transactions works with.
type txCase[Tx any] struct {
	*fixture
	h     TxHarness[Tx]
	store store.TxStore[Tx]
}

// tx is stet.WithTx.
func (c *txCase[Tx]) tx(e *stet.Engine, s store.TxStore[Tx]) *stet.TxEngine[Tx] {
	te, err := stet.WithTx(e, s)
	if err != nil {
		c.Fatalf("stet.WithTx: %v", err)
	}
	return te
}

// txChecks returns the claims about transactions that apply to a store like like.
func txChecks[Tx any](h TxHarness[Tx], like store.Store) []check {
	with := func(run func(*txCase[Tx])) func(*fixture) {
		return func(f *fixture) {
			s, ok := store.As[store.TxStore[Tx]](f.store)
			if !ok {
				f.Fatalf("Harness.New returned a %T, which is no %T", f.store, (*store.TxStore[Tx])(nil))
			}
			run(&txCase[Tx]{f, h, s})
		}
	}
	all := []check{
		{"a caller beside a transaction gets in flight, or waits", "a fence that is none must not be taken for one.",
			with((*txCase[Tx]).toldOfTx)},
		{"the business rows and the record are committed together", "one without the other is a lost or a repeated effect.",
			with((*txCase[Tx]).committed)},
		{"every outcome comes back byte for byte", "a replay is the first answer, not something like it.",
			with((*txCase[Tx]).outcomes)},
		{"an error or a panic rolls everything back", "the rollback is what proves that a retry is safe.",
			with((*txCase[Tx]).rolledBack)},
		{"the function is called only where the state machine has an arrow", "what Claim must not grant, a transaction must not run either.",
			with((*txCase[Tx]).situationsTx)},
		{"a transaction runs after an expired run that was settled outside", "without an outcome that run had no effect, and will have none.",
			with((*txCase[Tx]).outsideTx)},
		{"another fingerprint is refused without calling the function", "a mismatch is reported first.",
			with((*txCase[Tx]).mismatch)},
		{"of many transactions on one key exactly one is committed", "two commits are two effects.",
			with((*txCase[Tx]).raceOne)},
		{"of a claim and a transaction on one key only one comes through", "both modes share the record.",
			with((*txCase[Tx]).raceModes)},
		{"retention and forgetting are those of a settle", "a committed record is a settled record.",
			with((*txCase[Tx]).retention)},
		{"a context that has ended commits nothing", "its caller will not receive the result.",
			with((*txCase[Tx]).endedContext)},
		{"SettleTx commits with the caller's rows, or has no effect", "this is how a worker finishes a claim that was made before.",
			with((*txCase[Tx]).settleTx)},
		{"SettleTx compares the fence", "a zombie's rows must not be committed with another run's outcome.",
			with((*txCase[Tx]).settleTxFenced)},
		{"while a transaction holds one key, others can be claimed and settled", "one customer's slow transaction must not stop the service.",
			with((*txCase[Tx]).othersGoOn)},
		{"a settled record is found while a transaction is open", "the engine reads nothing before it calls RunTx: a replay must not wait for what others do.",
			with((*txCase[Tx]).replayBeside)},
		{"a sweep beside a transaction does not undo it", "a sweep may delete the record that the transaction found; the run has still happened.",
			with((*txCase[Tx]).sweptMeanwhile)},
		{"an unacknowledged commit is queried, not repeated", "a lost reply proves nothing, also if the driver reports an error.",
			with((*txCase[Tx]).lostReply)},
	}
	if abilitiesOf(like).outbox != nil {
		all = append(all, check{"messages commit with the outcome, or do not exist", "a message leaves after its commit, and never without it.",
			with((*txCase[Tx]).messagesTx)})
	}
	if _, ok := store.As[store.TxLocker[Tx]](like); ok {
		all = append(all, check{"a transaction excludes one of the same operation under its other name", "two commits are two effects.",
			with((*txCase[Tx]).namesTx)})
	}
	if _, ok := store.As[store.WorkTxStore[Tx]](like); ok {
		all = append(all, workTxChecks(h)...)
	}
	return all
}

// run runs a transaction that writes a row and comes to out.
func (c *txCase[Tx]) run(req store.ClaimRequest, row string, out store.Settlement) (rec store.Record, calls int, err error) {
	rec, err = c.store.RunTx(c.ctx, req, c.keep, func(ctx context.Context, tx Tx, _ store.Record) (store.Settlement, error) {
		calls++
		return out, c.h.Write(ctx, tx, row)
	})
	return rec, calls, err
}

// within runs do in a transaction of the caller's own, which writes a row, and
// ends it.
func (c *txCase[Tx]) within(commit bool, do func(tx Tx)) (row string) {
	c.Helper()
	row = stet.NewKey()
	tx, end := c.h.Begin(c, c.store)
	if err := c.h.Write(c.ctx, tx, row); err != nil {
		c.Errorf("Write: %v", err)
	}
	do(tx)
	if err := end(commit); err != nil {
		c.Errorf("ending the transaction: %v", err)
	}
	return row
}

// rows requires the number of committed rows.
func (c *txCase[Tx]) rows(what, row string, want int) {
	c.Helper()
	if got := c.h.Rows(c, c.store, row); got != want {
		c.Errorf("%s: %d rows are committed; want %d", what, got, want)
	}
}

func (c *txCase[Tx]) committed() {
	req, row := c.request(c.long), stet.NewKey()
	var during store.Record
	calls := 0
	rec, err := c.store.RunTx(c.ctx, req, c.keep, func(ctx context.Context, tx Tx, rec store.Record) (store.Settlement, error) {
		during = rec
		calls++
		return completed("result"), c.h.Write(ctx, tx, row)
	})
	if err != nil || calls != 1 {
		c.Fatalf("RunTx called its function %d times and returned %v; want 1 and no error", calls, err)
	}
	if !granted(during, req) || during.Fence <= 0 || during.Attempt != 1 || during.ID != req.ID || during.Fingerprint != req.Fingerprint {
		c.Errorf("the function got %s; want the record to be: running, with its owner, attempt 1 and a fence", show(during))
	}
	if rec.State != store.Completed || rec.Owner != req.Owner || rec.Fence != during.Fence || text(rec.Result) != "result" {
		c.Errorf("RunTx returned %s; want it completed under the fence and owner that the function had", show(rec))
	}
	c.unchanged("Read after RunTx", rec)
	c.rows("after RunTx", row, 1)
	again, calls, err := c.run(byAnother(req), row, completed("another"))
	if d := diff(rec, again); err != nil || calls != 0 || d != "" {
		c.Errorf("RunTx of a settled key called its function %d times and returned %v; %s", calls, err, d)
	}
	c.rows("after a second RunTx", row, 1)
	c.settle(rec.Claim(), completed("result"), c.keep) // the same outcome, under the same fence
	c.fenced("Settle with another outcome", c.store.Settle(c.ctx, rec.Claim(), failed("no"), c.keep))
}

func (c *txCase[Tx]) outcomes() {
	every := make([]byte, 1<<20)
	if most := mostResult(c.store); most > 0 {
		every = every[:min(len(every), most-completed("").Result.Size())]
	}
	for i := range every {
		every[i] = byte(i)
	}
	for _, out := range []store.Settlement{completed(""), failed("no"), completed(string(every)), {State: store.Completed, Gone: true}, {State: store.Failed, Gone: true}} {
		req := c.request(c.long)
		if _, _, err := c.run(req, stet.NewKey(), out); err != nil {
			c.Fatalf("RunTx: %v", err)
		}
		for by, rec := range map[string]store.Record{"Read": c.read(req.ID), "Claim": c.claim(byAnother(req))} {
			if rec.State != out.State || rec.Gone != out.Gone || !rec.Result.Equal(out.Result) {
				c.Errorf("committed as %v with %s (gone: %v), %s returned %s", out.State, shown(out.Result), out.Gone, by, show(rec))
			}
		}
	}
}

func (c *txCase[Tx]) rolledBack() {
	mine := errors.New("out of stock")
	req, row := c.request(c.long), stet.NewKey()
	fail := func(how func() error) (err error) {
		ended := make(chan struct{})
		go func() { // Goexit ends it
			defer close(ended)
			defer func() {
				if p := recover(); p != nil {
					err = p.(error)
				}
			}()
			_, err = c.store.RunTx(c.ctx, req, c.keep, func(ctx context.Context, tx Tx, _ store.Record) (store.Settlement, error) {
				return store.Settlement{}, errors.Join(c.h.Write(ctx, tx, row), how())
			})
		}()
		<-ended
		return err
	}
	returns := func() error { return mine }
	for name, how := range map[string]func() error{"an error": returns, "a panic": func() error { panic(mine) }, "Goexit": func() error { runtime.Goexit(); return nil }} {
		if err := fail(how); name != "Goexit" && !errors.Is(err, mine) {
			c.Errorf("%s of the function came out as: %v", name, err)
		}
		c.rows("after "+name, row, 0)
		if rec := c.read(req.ID); rec.State != store.None {
			c.Errorf("after %s, the record is %s; want none", name, show(rec))
		}
	}
	if rec, calls, err := c.run(req, row, completed("x")); err != nil || calls != 1 || rec.State != store.Completed {
		c.Errorf("after a rollback, RunTx called its function %d times and returned %s, %v", calls, show(rec), err)
	}
	c.rows("after the retry", row, 1)

	// A rollback leaves a retryable record as it was.
	req = c.request(c.long)
	c.release(c.grant(req).Claim(), c.keep)
	was := c.read(req.ID)
	req = byAnother(req)
	if err := fail(returns); !errors.Is(err, mine) {
		c.Errorf("an error of the function came out as: %v", err)
	}
	c.unchanged("a rollback", was)
}

func (c *txCase[Tx]) situationsTx() {
	for _, s := range c.situations() {
		req, row := byAnother(s.req), stet.NewKey()
		rec, calls, err := c.run(req, row, completed("by tx"))
		if err != nil {
			c.Errorf("%s: RunTx: %v", s.name, err)
			continue
		}
		to, arrow := s.state.Next(store.VerbCommit)
		switch {
		case arrow:
			if calls != 1 || rec.State != to || rec.Owner != req.Owner || rec.Fence <= s.claim.Fence {
				c.Errorf("%s: RunTx called its function %d times and returned %s; want %v with a fence above %d", s.name, calls, show(rec), to, s.claim.Fence)
			}
			c.rows(s.name, row, 1)
			c.fenced("after RunTx of a key that was "+s.name+", Settle by its predecessor", c.store.Settle(c.ctx, s.claim, failed("zombie"), c.keep))
		case s.lapsed:
			if calls != 0 || rec.State != store.Unknown || rec.Fence != s.claim.Fence {
				c.Errorf("%s: RunTx called its function %d times and returned %s; want unknown", s.name, calls, show(rec))
			}
			c.rows(s.name, row, 0)
		default:
			if d := diff(s.rec, rec); calls != 0 || d != "" {
				c.Errorf("%s: RunTx called its function %d times; %s", s.name, calls, d)
			}
			c.rows(s.name, row, 0)
		}
		c.unchanged("Read after RunTx of a key that is "+s.name, rec)
	}
}

func (c *txCase[Tx]) mismatch() {
	for _, s := range c.situations() {
		if s.state == store.None {
			continue
		}
		req, row := byAnother(s.req), stet.NewKey()
		req.Fingerprint = fingerprintB
		rec, calls, err := c.run(req, row, completed("x"))
		if !errors.Is(err, store.ErrMismatch) || calls != 0 {
			c.Errorf("%s: RunTx called its function %d times and returned %s, %v; want ErrMismatch", s.name, calls, show(rec), err)
		}
		c.unchanged("a mismatch with a key that is "+s.name, s.rec)
		c.rows(s.name, row, 0)
	}
}

func (c *txCase[Tx]) raceOne() {
	for range 5 {
		req, row := c.request(c.long), stet.NewKey()
		recs := make([]store.Record, racers)
		reqs := make([]store.ClaimRequest, racers)
		race(racers, func(i int) {
			reqs[i] = byAnother(req)
			var err error
			if recs[i], _, err = c.run(reqs[i], row, completed(fmt.Sprint("run ", i))); err != nil {
				c.Errorf("RunTx beside others: %v", err)
			}
		})
		c.rows("many transactions", row, 1)
		stands := c.read(req.ID)
		wins := 0
		for i, rec := range recs {
			if rec.Owner == reqs[i].Owner {
				wins++
			}
			if rec.State != store.Running && diff(stands, rec) != "" || rec.State == store.Running && rec.Owner == reqs[i].Owner {
				c.Errorf("a transaction beside others got %s; the stored record is %s", show(rec), show(stands))
			}
		}
		if wins != 1 {
			c.Errorf("%d transactions believe that theirs was committed; want 1", wins)
		}
	}
}

func (c *txCase[Tx]) raceModes() {
	for range 10 {
		req, row := c.request(c.long), stet.NewKey()
		claim, tx := byAnother(req), byAnother(req)
		var claimed, committed store.Record
		var errs [2]error
		race(2, func(i int) {
			if i == 0 {
				claimed, errs[0] = c.store.Claim(c.ctx, claim)
			} else {
				committed, _, errs[1] = c.run(tx, row, completed("x"))
			}
		})
		if err := errors.Join(errs[:]...); err != nil {
			c.Errorf("a claim and a transaction: %v", err)
		}
		byClaim, byTx := granted(claimed, claim), committed.State.Settled() && committed.Owner == tx.Owner
		if byClaim && byTx {
			c.Error("a claim was granted and a transaction committed on the same key")
		}
		want := 0
		if byTx {
			want = 1
		} else if !byClaim && committed.State != store.Running {
			c.Errorf("neither succeeded: the claim got %s, the transaction %s", show(claimed), show(committed))
		}
		c.rows("a claim and a transaction", row, want)
	}
}
