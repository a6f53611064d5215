package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// watermark is the newest state of a store that 'stet doctor' has seen. It is in a file outside of
// the store, so that a store that was restored from an older backup is noticed.
type watermark struct {
	At    time.Time `json:"at"`    // on the store's clock
	ID    string    `json:"id"`    // of a record that doctor has stored
	Fence int64     `json:"fence"` // of that record
}

// markKept is how long the record of a watermark is retained.
const markKept = 30 * 24 * time.Hour

const restored = "restored"

// compareWatermark compares the store with the watermark in a file, and then writes a new one. A
// store that is older than its watermark leaves the file unchanged.
func compareWatermark(ctx context.Context, st store.Store, name string) finding {
	was, err := readWatermark(name)
	if err != nil {
		return bad(restored, err.Error(), "correct the path, or remove the file: then restores before now are not noticed")
	}
	is, err := newWatermark(ctx, st)
	if err != nil {
		return bad(restored, describe(store.Record{}, err), "may this role write? Is the disk full?")
	}
	if was != nil {
		lost, err := was.missing(ctx, st, is)
		if err != nil {
			return bad(restored, describe(store.Record{}, err), "may this role read?")
		}
		if lost != "" {
			return bad(restored, lost+": the store is older than its watermark of "+was.At.UTC().Format(time.RFC3339), "it was restored from a backup, or has lost writes. Stop the services: operations since the backup may run again. docs/operate/restore.md says what to do")
		}
	}
	text, err := json.Marshal(is)
	if err == nil {
		err = replaceFile(name, append(text, '\n'))
	}
	if err != nil {
		return bad(restored, err.Error(), "may this user write the file?")
	}
	if was == nil {
		return ok(restored, "this is the first watermark")
	}
	return ok(restored, "the store has all that it had at %s", was.At.UTC().Format(time.RFC3339))
}

// missing describes the part of a watermark that the store lacks, "" if it lacks none.
func (w *watermark) missing(ctx context.Context, st store.Store, is watermark) (string, error) {
	if is.Fence <= w.Fence {
		return fmt.Sprintf("the store has returned the fence %d, and before it %d", is.Fence, w.Fence), nil
	}
	if is.At.Sub(w.At) > markKept-time.Hour {
		return "", nil // its record has expired
	}
	id, err := store.ParseID(w.ID)
	if err != nil {
		return "", err
	}
	rec, err := st.Read(ctx, id)
	if err == nil && rec.State != store.Completed { // with a tier, its fence can be that of either store
		return "a record is missing", nil
	}
	return "", err
}

// newWatermark stores a record.
func newWatermark(ctx context.Context, st store.Store) (watermark, error) {
	req := store.ClaimRequest{ID: store.Digest("stet doctor", "watermark", stet.NewKey()), Scope: store.DigestScope("stet doctor", "watermark"),
		Fingerprint: stet.NewFingerprint([]byte("a")), Owner: store.NewOwner(), Lease: time.Minute}
	keep := store.Retention{Result: markKept, Tombstone: markKept}
	defer leaveNothing(ctx, st, req, store.Retention{})
	rec, err := st.Claim(ctx, req)
	if err == nil {
		err = st.Settle(ctx, rec.Claim(), store.Settlement{State: store.Completed}, keep)
	}
	return watermark{At: rec.ClaimedAt, ID: req.ID.String(), Fence: rec.Fence}, err
}

// readWatermark returns nil if there is no file.
func readWatermark(name string) (*watermark, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w := &watermark{}
	if err := json.Unmarshal(text, w); err != nil || w.Fence == 0 {
		return nil, fmt.Errorf("%s is no watermark", name)
	}
	return w, nil
}

// replaceFile writes a file so that a crash leaves the old content or the new one.
func replaceFile(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".watermark-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it is not there any more after a success
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
