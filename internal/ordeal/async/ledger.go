package async

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// What a line of the ledger, or a row of the table of effects, says.
const (
	effect  = "effect"  // it happened
	gave    = "gave"    // this is what a step gave its handler
	voided  = "voided"  // a verifier had a run's effect refused, should it come yet
	checked = "checked" // a verifier was asked
	died    = "died"    // a process killed itself
	stopped = "stopped" // a process stopped itself
)

// entry is a line of the ledger, or a row of the table of effects.
type entry struct {
	Kind    string `json:"kind"`
	Key     string `json:"key,omitempty"`  // of the operation
	What    string `json:"what,omitempty"` // the part of the operation, or the point of a death
	ID      string `json:"id,omitempty"`   // random: two runs never have the same effect
	Fence   int64  `json:"fence,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
}

// ledger is a file that all processes append to, and outside of every store. It
// keeps nobody from writing the same twice. Only processes are killed and not the
// machine, so nothing waits for the disk.
type ledger struct {
	mu   sync.Mutex
	file *os.File
	read int64 // how much of the file is known

	torn   bool // what is known does not end with a line
	charge map[string]entry
	void   map[string]int64 // key → fence
}

func openLedger(dir string) (*ledger, error) {
	file, err := os.OpenFile(filepath.Join(dir, "ledger"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &ledger{file: file, charge: make(map[string]entry), void: make(map[string]int64)}, nil
}

func (l *ledger) close() error { return l.file.Close() }

// locked calls f while no other process has the ledger, and l knows all of it.
func (l *ledger) locked(f func() error) (err error) {
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
		var e entry
		if json.Unmarshal(line, &e) != nil {
			continue // of a process that was killed while it wrote
		}
		switch {
		case e.Kind == effect && l.charge[e.Key].ID == "":
			l.charge[e.Key] = e
		case e.Kind == voided:
			l.void[e.Key] = max(l.void[e.Key], e.Fence)
		}
	}
	return f()
}

// write appends a line. The caller is in locked.
func (l *ledger) write(e entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if l.torn {
		b = append([]byte{'\n'}, b...)
	}
	_, err = l.file.Write(append(b, '\n'))
	return err
}

func (l *ledger) add(e entry) error { return l.locked(func() error { return l.write(e) }) }

// charges has an effect, unless a verifier has said meanwhile that the run will
// have none.
func (l *ledger) charges(e entry) error {
	return l.locked(func() error {
		if e.Fence <= l.void[e.Key] {
			return errVoided
		}
		return l.write(e)
	})
}

// verify finds the effect of an operation; if there is none, no run up to that
// fence will have it any more. A verifier that only looked would have to know that
// the run is dead, and not just slow.
func (l *ledger) verify(key string, fence int64) (e entry, ok bool, err error) {
	err = l.locked(func() error {
		e, ok = l.charge[key]
		err := l.write(entry{Kind: checked, Key: key, Fence: fence})
		if err == nil && !ok {
			err = l.write(entry{Kind: voided, Key: key, Fence: fence})
		}
		return err
	})
	return e, ok, err
}

// entries returns all lines.
func (l *ledger) entries() (all []entry, err error) {
	lines := bufio.NewScanner(io.NewSectionReader(l.file, 0, 1<<40))
	for lines.Scan() {
		var e entry
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			all = append(all, e)
		}
	}
	return all, lines.Err()
}
