package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/stet-go/stet/bench/internal/rounds"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/postgres"
)

// pages is how many pages of a query are looked at, at most.
const pages = 3000

// browse measures how long the pages of what operators ask for take.
func browse(ctx context.Context, st *postgres.Store) error {
	scope := store.ID(sha256.Sum256(binary.BigEndian.AppendUint64(nil, 7)))
	unknown := []store.State{store.Unknown}
	for _, c := range []struct {
		name string
		q    store.Query
	}{
		{"all", store.Query{}},
		{"unknown", store.Query{States: unknown}},
		{"scope", store.Query{Scope: scope}},
		{"scope_unknown", store.Query{Scope: scope, States: unknown}},
		{"scope_completed", store.Query{Scope: scope, States: []store.State{store.Completed}}},
		{"failed", store.Query{States: []store.State{store.Failed}}}, // there is none: the worst case
		{"age", store.Query{OlderThan: 13 * time.Hour, NewerThan: 13*time.Hour + 10*time.Minute}},
	} {
		var took []time.Duration
		found, began := 0, time.Now()
		for {
			at := time.Now()
			page, err := st.Browse(ctx, c.q)
			if err != nil {
				return err
			}
			took, found = append(took, time.Since(at)), found+len(page.Records)
			if c.q.After = page.Next; page.Next == "" || len(took) == pages {
				break
			}
		}
		slices.Sort(took)
		fmt.Printf("browse %-16s %7d records in %4d pages, %.1f s, the slowest page %v\n",
			c.name, found, len(took), time.Since(began).Seconds(), took[len(took)-1].Round(time.Microsecond))
		rounds.Figure("postgres_browse_"+c.name, float64(took[len(took)/2].Microseconds())/1000, "ms for a page (median)")
	}
	return nil
}
