package sqlite

import (
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

// buried is how long the tombstone of a damaged record is kept.
const buried = 30 * 24 * time.Hour

// unreadable is the error of a record that was damaged, or written by another program.
func unreadable(id store.ID, what string) error {
	return fmt.Errorf("sqlite: %w: that of %v is damaged, or was written by something else: %s", store.ErrDamaged, id, what)
}

// damage are the records of a call that cannot be read. They hide no other.
type damage struct {
	claims []store.Claim
	cause  error
}

func (d *damage) add(c store.Claim, cause error) {
	d.claims = append(d.claims, c)
	if d.cause == nil {
		d.cause = cause
	}
}

// err is nil if there are none.
func (d *damage) err() error {
	if len(d.claims) == 0 {
		return nil
	}
	return &store.PartialError{Claims: d.claims, Cause: d.cause}
}

// bury replaces the row of c, which cannot be read, by a tombstone with its fence and its readable fields.
func (r *row) bury(s *session, c store.Claim) error {
	if r.Fence != c.Fence {
		return store.ErrFenced
	}
	fence, err := s.nextFence()
	if err != nil {
		return err
	}
	forget := s.now + span(buried)
	_, err = s.exec(qBury, fence, r.Scope[:], r.Fingerprint[:], c.Owner[:], s.now, s.now, forget, forget, c.Fence)
	return err
}
