package simulate

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// flawedServer is a database with a defect.
type flawedServer struct {
	server
	defect string
}

func (f flawedServer) is(defect string) bool { return f.defect == defect }

func (f flawedServer) enter(t *txn) (store.Record, error) {
	before := f.w.look(int(t.key)).rec
	if f.is("runs expired claims again") && before.State == store.Running && before.LeaseLeft <= 0 && before.Fingerprint == t.req.Fingerprint {
		if err := f.w.truth.Release(t.p.ctx, before.Claim(), store.Retention{Result: time.Hour, Tombstone: time.Hour}); err != nil {
			return before, err
		}
	}
	rec, err := f.server.enter(t)
	if f.is("checks no fingerprint") && stet.KindOf(err) == stet.KindMismatch {
		rec.Fingerprint, err = t.req.Fingerprint, nil
	}
	return rec, err
}

func (f flawedServer) commit(t *txn, out store.Settlement, keep store.Retention) error {
	switch {
	case f.is("acknowledges before it commits"):
		f.w.let(t)
		return nil
	case f.is("commits rolled-back transactions") && !t.open && t.wrote:
		return f.w.writeDown(t, out, keep)
	case f.is("commits the record alone"):
		t.wrote = false
	case f.is("commits the effect alone") && t.open:
		f.effect(t)
		f.w.let(t)
		return nil
	}
	err := f.server.commit(t, out, keep)
	if f.is("commits the effect though the record is taken") && errors.Is(err, errTaken) {
		f.effect(t)
	}
	return err
}

func (f flawedServer) abort(t *txn) {
	if f.is("keeps rolled-back writes") && t.open && t.wrote {
		f.effect(t)
	}
	f.server.abort(t)
}

func (f flawedServer) look(t *txn) (store.Record, bool, error) {
	if f.is("reads before the transaction has ended") && t.open {
		return f.w.look(int(t.key)).rec, true, nil
	}
	return f.server.look(t)
}

// effect makes the effect of t alone.
func (f flawedServer) effect(t *txn) {
	l := &f.w.ledgers[t.key]
	l.made = append(l.made, t.made)
}

// txDefects are what must be found, each within so many seeds.
var txDefects = []struct {
	defect string
	within uint64
}{
	{"runs expired claims again", 2000},
	{"checks no fingerprint", 100},
	{"acknowledges before it commits", 100},
	{"commits rolled-back transactions", 20000},
	{"commits the record alone", 100},
	{"commits the effect alone", 100},
	{"commits the effect though the record is taken", 2000},
	{"keeps rolled-back writes", 500},
	{"reads before the transaction has ended", 5000},
}

func TestDefectsOfTransactionsAreFoundAndShrink(t *testing.T) {
	for _, d := range txDefects {
		t.Run(d.defect, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				seek(t, Config{Transactions: true, database: func(s server) database { return flawedServer{s, d.defect} }}, d.within, fewSteps)
			})
		})
	}
}
