// Package calls has what stores share that make one request for each record: many records at a time,
// and errors about some of them.
package calls

import (
	"errors"
	"fmt"
	"sync"

	"github.com/stet-go/stet/store"
)

// Together is how many requests about different records one call sends at a time.
const Together = 32

// Each calls do for 0 to n-1, Together at a time.
func Each(n int, do func(int)) {
	var wg sync.WaitGroup
	turns := make(chan struct{}, Together)
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			do(i)
		})
	}
	wg.Wait()
}

// Partial is the records of a call that could not be reached or read. It is safe for concurrent use.
type Partial struct {
	mu     sync.Mutex
	claims []store.Claim
	cause  error
}

// Add adds a record.
func (p *Partial) Add(c store.Claim, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = append(p.claims, c)
	if p.cause == nil {
		p.cause = cause
	}
}

// Err returns a *store.PartialError; nil if there are none.
func (p *Partial) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.claims) == 0 {
		return nil
	}
	return &store.PartialError{Claims: p.claims, Cause: p.cause}
}

// Extend is store.Store.Extend by a call for each claim. A claim whose call returns store.ErrFenced is lost.
func Extend(claims []store.Claim, extend func(store.Claim) error) (lost []store.Claim, err error) {
	errs := make([]error, len(claims))
	Each(len(claims), func(i int) { errs[i] = extend(claims[i]) })
	var bad Partial
	for i, err := range errs {
		switch {
		case errors.Is(err, store.ErrFenced):
			lost = append(lost, claims[i])
		case err != nil:
			bad.Add(claims[i], err)
		}
	}
	if len(bad.claims) == len(claims) && len(claims) > 0 && !errors.Is(bad.cause, store.ErrDamaged) {
		return nil, bad.cause
	}
	return lost, bad.Err()
}

// NotDone returns an error of a call that had no effect.
func NotDone(err error) error {
	if errors.Is(err, store.ErrNotDone) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrNotDone, err)
}
