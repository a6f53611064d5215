package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// others does with keys of its own what callers do, and says what went wrong. It
// may be called in another goroutine.
func (c *txCase[Tx]) others(reqs []store.ClaimRequest) error {
	var errs []error
	try := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	for i, req := range reqs {
		rec, err := c.store.Claim(c.ctx, req)
		try("Claim", err)
		if err == nil && !granted(rec, req) {
			try("Claim", fmt.Errorf("it returned %s", show(rec)))
		}
		lost, err := c.store.Extend(c.ctx, []store.Claim{rec.Claim()}, c.long)
		try("Extend", err)
		if len(lost) > 0 {
			try("Extend", errors.New("the claim is lost"))
		}
		if i%2 == 0 {
			try("Settle", c.store.Settle(c.ctx, rec.Claim(), completed("x"), c.keep))
		} else {
			try("Release", c.store.Release(c.ctx, rec.Claim(), c.keep))
		}
	}
	return errors.Join(errs...)
}

// goOn requires that callers with other keys come through while a transaction is
// open: within it, or with one writer, once it has ended. The returned function
// waits for that.
func (c *txCase[Tx]) goOn(what string) (afterwards func()) {
	c.Helper()
	free := c.request(c.long)
	if rec, err := c.store.Read(c.ctx, free.ID); err != nil || rec.State != store.None {
		c.Errorf("%s: Read of another key returned %s, %v", what, show(rec), err)
	}
	reqs := []store.ClaimRequest{free, c.request(c.long), c.request(c.long), c.request(c.long)}
	done := make(chan error, 1)
	go func() { done <- c.others(reqs) }()
	wait := func() {
		c.Helper()
		select {
		case err := <-done:
			if err != nil {
				c.Errorf("%s, callers with other keys got: %v", what, err)
			}
		case <-time.After(patience):
			c.Errorf("%s, callers with other keys waited for more than %v", what, patience)
		}
	}
	if c.h.OneWriter {
		return wait
	}
	wait()
	return func() {}
}

func (c *txCase[Tx]) othersGoOn() {
	afterwards := func() {}
	_, err := c.store.RunTx(c.ctx, c.request(c.long), c.keep, func(ctx context.Context, tx Tx, _ store.Record) (store.Settlement, error) {
		afterwards = c.goOn("while RunTx holds a key")
		return completed("x"), c.h.Write(ctx, tx, stet.NewKey())
	})
	if err != nil {
		c.Errorf("RunTx beside others: %v", err)
	}
	afterwards()

	rec := c.grant(c.request(c.long))
	tx, end := c.h.Begin(c, c.store)
	if err := c.store.SettleTx(c.ctx, tx, rec.Claim(), completed("x"), c.keep); err != nil {
		c.Errorf("SettleTx: %v", err)
	}
	afterwards = c.goOn("while a transaction with SettleTx is open")
	if err := end(true); err != nil {
		c.Errorf("ending the transaction: %v", err)
	}
	afterwards()
}

// replayBeside asks for settled records while a transaction with another key is open.
func (c *txCase[Tx]) replayBeside() {
	req := c.request(c.long)
	if _, _, err := c.run(req, stet.NewKey(), completed("first")); err != nil {
		c.Fatalf("RunTx: %v", err)
	}
	again, other := req, req
	again.Owner, other.Owner, other.Fingerprint = store.NewOwner(), store.NewOwner(), stet.NewFingerprint([]byte("another request"))
	done := make(chan struct{})
	replays := func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(c.ctx, patience)
		defer cancel()
		none := func(context.Context, Tx, store.Record) (store.Settlement, error) {
			return store.Settlement{}, errors.New("the function was called")
		}
		if rec, err := c.store.RunTx(ctx, again, c.keep, none); err != nil || rec.State != store.Completed || text(rec.Result) != "first" {
			c.Errorf("RunTx of a settled record, beside a transaction: %s, %v", show(rec), err)
		}
		if rec, err := c.store.RunTx(ctx, other, c.keep, none); !errors.Is(err, store.ErrMismatch) {
			c.Errorf("RunTx of a settled record with another fingerprint, beside a transaction: %s, %v; want ErrMismatch", show(rec), err)
		}
	}
	_, err := c.store.RunTx(c.ctx, c.request(c.long), c.keep, func(ctx context.Context, tx Tx, _ store.Record) (store.Settlement, error) {
		if err := c.h.Write(ctx, tx, stet.NewKey()); err != nil {
			return store.Settlement{}, err
		}
		go replays()
		select {
		case <-done:
		case <-time.After(patience):
			c.Errorf("a settled record was not found in %v while a transaction was open", patience)
		}
		return completed("x"), nil
	})
	if err != nil {
		c.Errorf("RunTx beside a replay: %v", err)
	}
	<-done
}

func (c *workCase[Tx]) othersGoOnWithWork() {
	tx, end := c.h.Begin(c, c.store)
	c.acceptIn(tx, c.request(c.long))
	afterwards := c.goOn("while a transaction with AcceptTx is open")
	if err := end(true); err != nil {
		c.Errorf("ending the transaction: %v", err)
	}
	afterwards()
	err := c.store.InTx(c.ctx, func(ctx context.Context, tx Tx) error {
		_, err := c.store.AcceptTx(ctx, tx, c.request(c.long), []byte("work"), 0)
		afterwards = c.goOn("while InTx holds a key")
		return err
	})
	if err != nil {
		c.Errorf("InTx beside others: %v", err)
	}
	afterwards()
}

// sweptMeanwhile has the record that a transaction continues from forgotten, and
// swept, while the function runs.
func (c *txCase[Tx]) sweptMeanwhile() {
	for _, keep := range []store.Retention{{Result: c.unit, Tombstone: c.unit}, {Result: c.unit / 4, Tombstone: c.unit / 4}} {
		req, row := c.request(c.long), stet.NewKey()
		rec := c.grant(req)
		c.release(rec.Claim(), keep)
		if keep.Result != c.unit {
			c.pass(1) // forgotten before the transaction begins
		}
		req = byAnother(req)
		now, err := c.store.RunTx(c.ctx, req, c.keep, func(ctx context.Context, tx Tx, _ store.Record) (store.Settlement, error) {
			c.pass(1)
			if s := c.can.sweeper; s != nil {
				brief, cancel := context.WithTimeout(c.ctx, patience/60) // it may have to wait for this very transaction
				defer cancel()
				_, _ = s.Sweep(brief, 100)
			}
			return completed("result"), c.h.Write(ctx, tx, row)
		})
		if err != nil || now.State != store.Completed || now.Owner != req.Owner || now.Fence <= rec.Fence {
			c.Errorf("RunTx, beside which the record before it was forgotten and swept, returned %s, %v", show(now), err)
		}
		c.rows("RunTx beside a sweep", row, 1)
		c.unchanged("RunTx beside a sweep", now)
	}
}

// beside lets other goroutines begin.
func (f *fixture) beside() {
	for range 200 {
		runtime.Gosched()
	}
}

func (c *txCase[Tx]) toldOfTx() {
	req, row := c.request(c.long), stet.NewKey()
	var told store.Record
	var err, mismatch error
	inTime, done := false, make(chan struct{})
	_, during := c.store.RunTx(c.ctx, req, c.keep, func(ctx context.Context, tx Tx, rec store.Record) (store.Settlement, error) {
		if rec.InTx || rec.Fence <= 0 {
			c.Errorf("the function was called with %s, InTx: %v; want its own fence", show(rec), rec.InTx)
		}
		go func() {
			defer close(done)
			told, _, err = c.run(byAnother(req), row, completed("second"))
			other := byAnother(req)
			other.Fingerprint = fingerprintB
			_, _, mismatch = c.run(other, row, completed("third"))
		}()
		late := time.NewTimer(waits)
		defer late.Stop()
		select {
		case <-done:
			inTime = true
		case <-late.C: // a store may have it wait
		}
		return completed("first"), nil
	})
	<-done
	// On a busy machine the answer may come late, and be one from beside the transaction.
	if inTime || told.State == store.Running {
		if err != nil || told.State != store.Running || !told.InTx || told.Fence != 0 || told.Owner != (store.Owner{}) || told.LeaseLeft != 0 || told.Fingerprint != req.Fingerprint {
			c.Errorf("beside a transaction RunTx returned %s, InTx: %v, LeaseLeft %v, %v; want it running in one, with neither fence, owner nor lease", show(told), told.InTx, told.LeaseLeft, err)
		}
	}
	if !errors.Is(mismatch, store.ErrMismatch) {
		c.Errorf("beside a transaction RunTx with another fingerprint returned %v; want ErrMismatch", mismatch)
	}
	if during != nil {
		c.Errorf("RunTx: %v", during)
	}
	if now := c.read(req.ID); now.InTx || now.State != store.Completed || told.State == store.Completed && told.Owner != req.Owner {
		c.Errorf("when the transaction has ended, the record is %s, InTx: %v; beside it RunTx returned %s", show(now), now.InTx, show(told))
	}
	c.rows("RunTx beside a transaction", row, 0)
}
