package engine_test

import (
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// txOf is stet.WithTx of a store that is the engine's.
func txOf[Tx any](e *stet.Engine, s store.TxStore[Tx]) *stet.TxEngine[Tx] {
	te, err := stet.WithTx(e, s)
	if err != nil {
		panic(err)
	}
	return te
}
