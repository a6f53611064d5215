package crashtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// Charge is one effect, as the service answers it.
type Charge struct {
	ID     string `json:"id"` // random: two runs never have the same effect
	Scope  string `json:"scope,omitempty"`
	Key    string `json:"key"` // the operation's idempotency key
	Amount int    `json:"amount,omitempty"`
}

// Effect is a charge as the ledger, or a table beside the records, has it, with
// who made it.
type Effect struct {
	Charge
	Part    string `json:"part,omitempty"` // of the operation; "" if it has only one
	Fence   int64  `json:"fence,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Process int    `json:"process,omitempty"`
	At      int64  `json:"at,omitempty"` // on the clock of histories, just before it was written
	Emits   bool   `json:"emits,omitempty"`
}

// What a line of the ledger says.
const (
	Happened = "effect"  // it happened
	Gave     = "gave"    // this is what a step gave its handler
	Voided   = "voided"  // a verifier had a run's effect refused, should it come yet
	Verified = "checked" // a verifier was asked
	Refused  = "refused" // an effect came after that
)

// Line is a line of the ledger.
type Line struct {
	Kind string `json:"kind"`
	Effect
}

// Ledger is the world outside of the stores: a file that all processes append to.
// It has no unique constraint, so that a second effect would show. It is not
// synced: processes are killed here, not the machine.
type Ledger struct {
	mu   sync.Mutex
	file *os.File
	read int64 // how much of the file is known

	torn    bool              // the known part does not end with a line
	effects map[string]Effect // scope and key → the first one
	void    map[string]int64  // → fence
}

// ErrVoided says that a verifier got the answer that this run has no effect.
var ErrVoided = errors.New("a verifier got the answer that this run has no effect")

// OpenLedger opens the ledger in dir.
func OpenLedger(dir string) (*Ledger, error) {
	file, err := os.OpenFile(filepath.Join(dir, "ledger"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Ledger{file: file, effects: make(map[string]Effect), void: make(map[string]int64)}, nil
}

// Close closes the file.
func (l *Ledger) Close() error { return l.file.Close() }

func (c Charge) name() string { return c.Scope + "\x00" + c.Key }

// locked calls f while no other process has the ledger, and l knows all of it.
func (l *Ledger) locked(f func() error) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := syscall.Flock(int(l.file.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("the ledger cannot be locked: %w", err)
	}
	defer func() { _ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN) }() // closing does it, too
	rest, err := io.ReadAll(io.NewSectionReader(l.file, l.read, 1<<40))
	if err != nil {
		return err
	}
	l.read += int64(len(rest))
	if len(rest) > 0 {
		l.torn = rest[len(rest)-1] != '\n'
	}
	for line := range bytes.Lines(rest) {
		var e Line
		if json.Unmarshal(line, &e) != nil {
			continue // of a process that was killed while it wrote
		}
		switch name := e.name(); {
		case e.Kind == Happened && l.effects[name].ID == "":
			l.effects[name] = e.Effect
		case e.Kind == Voided:
			l.void[name] = max(l.void[name], e.Fence)
		}
	}
	return f()
}

// write appends a line. The caller is in locked.
func (l *Ledger) write(kind string, e Effect) error {
	b, err := json.Marshal(Line{kind, e})
	if err != nil {
		return err
	}
	if l.torn {
		b = append([]byte{'\n'}, b...)
	}
	_, err = l.file.Write(append(b, '\n'))
	return err
}

// Add appends a line.
func (l *Ledger) Add(kind string, e Effect) error {
	return l.locked(func() error { return l.write(kind, e) })
}

// Have has an effect, unless a verifier got the answer in the meantime that this run will have
// none: then the error is ErrVoided. When it returns nil, the effect has happened.
func (l *Ledger) Have(e Effect) error {
	return l.locked(func() error {
		if e.Fence <= l.void[e.name()] {
			return errors.Join(ErrVoided, l.write(Refused, e))
		}
		return l.write(Happened, e)
	})
}

// Verify finds the effect of an operation; if there is none, no run up to that
// fence will have it any more. A verifier that only looked would have to know that
// the run is dead, and not just slow.
func (l *Ledger) Verify(scope, key string, fence int64) (e Effect, ok bool, err error) {
	err = l.locked(func() error {
		asked := Effect{Charge: Charge{Scope: scope, Key: key}, Fence: fence}
		e, ok = l.effects[asked.name()]
		err := l.write(Verified, asked)
		if err == nil && !ok {
			err = l.write(Voided, asked)
		}
		return err
	})
	return e, ok, err
}

// ReadLedger returns the lines of a kind of the ledger in dir.
func ReadLedger(dir, kind string) (all []Effect, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "ledger"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for text := range bytes.Lines(text) {
		var l Line
		if json.Unmarshal(text, &l) == nil && l.Kind == kind { // not of a process that was killed while it wrote
			all = append(all, l.Effect)
		}
	}
	return all, err
}
