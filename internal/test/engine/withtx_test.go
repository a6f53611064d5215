package engine_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// A record in one database and the business writes in another would not be one commit.
func TestTransactionsOfAnotherStoreAreRefusedAtConstruction(t *testing.T) {
	store, e := bank(t)
	another, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "another.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = another.Close() })
	for name, try := range map[string]func() (*stet.TxEngine[*sql.Tx], error){
		"another store": func() (*stet.TxEngine[*sql.Tx], error) { return stet.WithTx(e, another) },
		"a store of another kind": func() (*stet.TxEngine[*sql.Tx], error) {
			return stet.WithTx(newEngine(t, memory.New(memory.Options{}), stet.Options{}), store)
		},
		"no engine": func() (*stet.TxEngine[*sql.Tx], error) { return stet.WithTx(nil, store) },
		"no store":  func() (*stet.TxEngine[*sql.Tx], error) { return stet.WithTx[*sql.Tx](e, nil) },
	} {
		if te, err := try(); te != nil || stet.KindOf(err) != stet.KindInvalid || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("%s: %v, %v; want KindInvalid", name, te, err)
		}
	}
	te, err := stet.WithTx(e, store)
	if err != nil {
		t.Fatal(err)
	}
	run := take(t, newEngine(t, another, stet.Options{}), accept(t, newEngine(t, another, stet.Options{}), op, parcel))
	err = te.Finish(t.Context(), run, func(context.Context, *sql.Tx) (stet.Outcome, error) { t.Error("ran"); return stet.Outcome{}, nil })
	if stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("a run of another store: %v; want KindInvalid", err)
	}
}
