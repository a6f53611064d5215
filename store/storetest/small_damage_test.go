package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// smallDamage makes a record of a small store unreadable.
func smallDamage(t testing.TB, store store.Store, id store.ID) {
	s := store.(*small)
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.m[s.id(id)]
	if r == nil {
		t.Fatal("there is no such record")
	}
	r.bad = true
}

// unreadable is the error of a call about r, nil if r can be read.
func (s *small) unreadable(r *smallRecord) error {
	bad := r != nil && r.bad && !s.is("reads damaged records")
	if s.is("fails the batch of a damaged record") {
		for _, other := range s.m {
			bad = bad || other.bad
		}
	}
	if !bad {
		return nil
	}
	return fmt.Errorf("small: %w", store.ErrDamaged)
}

// hurt gathers what a call about many records cannot read.
type hurt struct {
	s      *small
	claims []store.Claim
	err    error
}

// skips reports whether the call continues without r.
func (h *hurt) skips(r *smallRecord) bool {
	err := h.s.unreadable(r)
	if err == nil {
		return false
	}
	h.err = err
	h.claims = append(h.claims, r.Claim())
	return true
}

func (h *hurt) result() error {
	if h.err == nil || h.s.is("fails the batch of a damaged record") {
		return h.err
	}
	return &store.PartialError{Claims: h.claims, Cause: h.err}
}

// bury makes a tombstone of a record that cannot be read.
func (s *small) bury(r *smallRecord, c store.Claim, now time.Time) error {
	switch {
	case r.Fence != c.Fence || s.is("does not expire damaged records"):
		return store.ErrFenced
	case s.is("fails the batch of a damaged record"):
		return errors.New("it is damaged")
	case s.is("frees keys of damaged records"):
		delete(s.m, s.id(c.ID))
		return nil
	}
	day := 24 * time.Hour
	*r = smallRecord{Record: store.Record{ID: c.ID, Scope: r.Scope, State: store.Failed, Fingerprint: r.Fingerprint, Owner: c.Owner, Fence: c.Fence,
		Attempt: max(r.Attempt, 1), Gone: true, ClaimedAt: r.ClaimedAt, SettledAt: now, ExpiresAt: now, ForgetAt: now.Add(30 * day)}}
	return nil
}

// kept is a result as the store keeps it.
func (s *small) kept(r store.Result) store.Result {
	switch size := r.Size(); {
	case s.is("cuts results at NUL"):
		r.Head, _, _ = bytes.Cut(r.Head, []byte{0})
		r.Body, _, _ = bytes.Cut(r.Body, []byte{0})
	case s.is("keeps less than it reports") && size == smallMost:
		r.Body = r.Body[1:]
	case s.is("loses the status"):
		r.Status = 0
	case s.is("loses the type"):
		r.Type = ""
	case s.is("cuts the type") && len(r.Type) > 200:
		r.Type = r.Type[:200]
	case s.is("gives a head where there is none") && len(r.Head) == 0:
		r.Head = []byte{0}
	}
	return r
}

// equal tells whether results are the same.
func (s *small) equal(a, b store.Result) bool {
	if s.is("compares bodies alone") {
		return bytes.Equal(a.Body, b.Body)
	}
	return a.Equal(b)
}
