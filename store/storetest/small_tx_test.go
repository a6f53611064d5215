package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/stet-go/stet/store"
)

// smallTx is a transaction of small: the work to do when it commits.
type smallTx struct {
	rows  []string
	write []func()
	keys  []store.ID    // which it holds: others wait with them until it is over
	over  chan struct{} // closed then
}

func newSmallTx() *smallTx { return &smallTx{over: make(chan struct{})} }

// await waits until no other transaction holds the key, and returns what time it is
// then. The caller holds s.mu.
func (s *small) await(id store.ID, tx *smallTx, now time.Time) time.Time {
	for !s.is("does not wait for transactions") {
		by := s.held[s.id(id)]
		for _, other := range s.held {
			if s.is("lets no key pass a transaction") && other != tx {
				by = other
			}
		}
		if by == nil || by == tx {
			break
		}
		s.mu.Unlock()
		<-by.over
		s.mu.Lock()
		now = s.now()
	}
	return now
}

// hold keeps others from the key until the transaction is over.
func (s *small) hold(id store.ID, tx *smallTx) {
	s.held[s.id(id)] = tx
	tx.keys = append(tx.keys, s.id(id))
}

// LockTx implements store.TxLocker.
func (s *small) LockTx(_ context.Context, tx *smallTx, id store.ID) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := s.held[s.id(id)]; by != nil && by != tx {
		return false, nil
	}
	s.hold(id, tx)
	return true, nil
}

// leave ends a transaction's hold of its keys.
func (s *small) leave(tx *smallTx) {
	for _, id := range tx.keys {
		delete(s.held, id)
	}
	close(tx.over)
}

// outside calls f without s.mu, which the caller holds.
func (s *small) outside(f func() (store.Settlement, error)) (store.Settlement, error) {
	s.mu.Unlock()
	defer s.mu.Lock()
	return f()
}

// gone is the error of a transaction whose record was swept in the meantime.
func (s *small) gone(was *smallRecord, id store.ID) error {
	if was.Fence != 0 && s.m[s.id(id)] == nil && s.is("rolls back if a sweep deleted the record") {
		return errors.New("the record has changed")
	}
	return nil
}

// later is now + d.
func (s *small) later(now time.Time, d time.Duration) time.Time {
	if s.is("wraps long durations") {
		return time.Unix(0, now.UnixNano()+int64(d))
	}
	return now.Add(d)
}

// over reports whether now is past t.
func (s *small) over(now, t time.Time) bool {
	if s.is("ends everything a moment late") {
		return now.After(t)
	}
	return !now.Before(t)
}

// finish ends a transaction.
func (s *small) finish(tx *smallTx, commit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if commit {
		s.commit(tx)
	}
	s.leave(tx)
}

// smallMost is the greatest result that small keeps.
const smallMost = 1 << 20

func (s *small) MaxResult() int { return smallMost }

func (r *smallRecord) to(verb store.Verb) bool {
	next, ok := r.State.Next(verb)
	r.State = next
	return ok
}
