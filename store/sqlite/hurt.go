package sqlite

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/stet-go/stet/store"
)

const (
	// putOff is for how long the sweep leaves a record alone that it cannot read.
	putOff = time.Hour
	// buried is how long the tombstone of such a record is kept.
	buried = 30 * 24 * time.Hour
)

// unreadable is the error of a record that was damaged, or written by something
// else.
func unreadable(id store.ID, what string) error {
	return fmt.Errorf("sqlite: %w: that of %v is damaged, or was written by something else: %s", store.ErrDamaged, id, what)
}

// hurt are the records of a call that cannot be read. They hide no other.
type hurt struct {
	claims []store.Claim
	cause  error
}

func (h *hurt) add(c store.Claim, cause error) {
	h.claims = append(h.claims, c)
	if h.cause == nil {
		h.cause = cause
	}
}

// err is nil if there are none.
func (h *hurt) err() error {
	if len(h.claims) == 0 {
		return nil
	}
	return &store.PartialError{Claims: h.claims, Cause: h.cause}
}

// rowID is the ID of a row, or zero if it cannot be read.
func rowID(v driver.Value) (id store.ID, err error) {
	if b, _ := v.([]byte); len(b) != len(id) || copy(id[:], b) != len(id) {
		return store.ID{}, unreadable(id, "its ID is of another length")
	}
	return id, nil
}

// bury replaces a record that cannot be read by a tombstone with its fence and its readable
// fields.
func bury(b *batch, c store.Claim) error {
	r := &row{}
	found := false
	err := b.rows(qSelect, func(v []driver.Value) error {
		found = true
		return r.scan(c.ID, v)
	}, c.ID[:])
	switch {
	case err == nil && !found && c.ID == store.ID{}: // it has no ID that anybody could ask for
		if n, err := b.exec(qDrop, c.Fence); err != nil || n == 1 {
			return err
		}
		return store.ErrFenced
	case err == nil || found && r.Fence != c.Fence:
		return store.ErrFenced
	case !errors.Is(err, store.ErrDamaged):
		return err
	}
	fence, err := b.draw()
	if err != nil {
		return err
	}
	forget := b.now + span(buried)
	_, err = b.exec(qBury, fence, r.Scope[:], r.Fingerprint[:], c.Owner[:], b.now, b.now, forget, forget, c.Fence, c.ID[:])
	return err
}
