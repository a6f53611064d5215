package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

const (
	scopes = 1000 // tenants, whose records are neighbours in the index of IDs
	route  = "POST /v1/payments"
)

// keep is how long the records of the tables that are filled are kept: stet's defaults.
var keep = store.Retention{Result: 24 * time.Hour, Tombstone: 30 * 24 * time.Hour}

// receipt is what an operation answers: as a service would, by HTTP, in 200 bytes of JSON.
func receipt(key string) stet.Outcome {
	body := `{"id":"pay_1NirD82eZvKYlo2C","object":"payment","amount":4200,"currency":"eur","status":"succeeded","key":"` + key + `","note":"`
	body += strings.Repeat("r", 198-len(body)) + `"}`
	return stet.Outcome{
		Adapter: store.AdapterHTTP, Status: 201, Type: "application/json", Body: []byte(body),
		Header: []store.Field{{Name: "Location", Values: []string{"/v1/payments/pay_1NirD82eZvKYlo2C"}}},
	}
}

// filled is an operation whose record a table is filled with. They all have the outcome of
// the first.
func filled(i int) stet.Op { return operation(i, fmt.Sprintf("filled-%010d", i)) }

// fresh is an operation that has no record before it is run.
func fresh(i int) stet.Op { return operation(i, fmt.Sprintf("fresh--%010d", i)) }

func operation(i int, key string) stet.Op {
	return stet.Op{Scope: fmt.Sprintf("tenant-%03d", i%scopes), Key: key, Name: route, Fingerprint: stet.NewFingerprint([]byte(key))}
}

// request is what the engine asks a store for an operation.
func request(op stet.Op) store.ClaimRequest {
	return store.ClaimRequest{
		ID: store.Digest("", op.Scope, op.Key), Scope: store.DigestScope("", op.Scope), Fingerprint: op.Fingerprint,
		Owner: store.NewOwner(), Lease: 30 * time.Second, Label: store.Label{Name: op.Name},
	}
}

// specimen lets an engine run the first operation, and returns the record that it has
// written: the others are made after it.
func specimen(ctx context.Context, st store.Store) (store.Record, error) {
	engine, err := stet.New(st, stet.Options{SweepEvery: -1, Policy: stet.Policy{Retention: keep}})
	if err != nil {
		return store.Record{}, err
	}
	defer func() { _ = engine.Close() }() // never fails
	lease, err := engine.Begin(ctx, filled(0))
	if err == nil && !lease.Replayed() {
		err = lease.Settle(ctx, receipt(filled(0).Key))
	}
	if err != nil {
		return store.Record{}, err
	}
	rec, err := st.Read(ctx, engine.ID(filled(0).Scope, filled(0).Key))
	if err == nil && rec.State != store.Completed {
		err = fmt.Errorf("the first record is %v", rec.State)
	}
	return rec, err
}

// spread calls do for 0 to n-1 from so many callers, until one fails.
func spread(callers, n int, do func(i int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, callers)
	for c := range callers {
		wg.Go(func() {
			for errs[c] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[c] = do(i)
			}
			next.Store(int64(n))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
