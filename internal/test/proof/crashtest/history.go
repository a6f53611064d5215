package crashtest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/stet-go/stet/store"
)

// Kind says what an event tells of a call.
type Kind string

// The kinds. A call without an end is one whose process died in the middle.
const (
	Invoke Kind = "invoke"  // the call is about to be sent
	OK     Kind = "ok"      // it was answered
	Fail   Kind = "fail"    // it was refused: see Why
	Unsure Kind = "unknown" // it may or may not have taken effect
	Intent Kind = "intent"  // a transaction is about to be committed with this outcome
	Die    Kind = "die"     // the process kills itself at Point
	Wanted Kind = "wanted"  // a caller wants an operation done, and gets no reply
	Looked Kind = "looked"  // what a record was when all was over

	Flushing Kind = "flushing" // Redis is about to lose all records
	Flushed  Kind = "flushed"  // and has lost them
)

// The verbs of calls.
const (
	VerbRequest  = "request" // of the clients; the others are the store's
	verbClaim    = "claim"
	verbSettle   = "settle"
	verbRelease  = "release"
	verbExtend   = "extend"
	verbRead     = "read"
	verbTransact = "transact"
)

// The reasons of a Fail.
const (
	whyMismatch = "mismatch"
	whyFenced   = "fenced"
	whyNothing  = "nothing done" // the call had no effect

	WhyCancelled = "cancelled" // of a record that was looked at
)

// Event is one line of a process's history. Fields that its kind and verb do not
// need are zero.
type Event struct {
	At      int64  `json:"at"`                // nanoseconds on a clock that all processes of the host share
	Process int    `json:"process"`           // 0 are the clients
	Call    int64  `json:"call,omitempty"`    // ties an invocation to its end, within a process
	Kind    Kind   `json:"kind"`              //
	Verb    string `json:"verb,omitempty"`    //
	ID      string `json:"id,omitempty"`      // of the operation, as the store knows it
	Why     string `json:"why,omitempty"`     // of a Fail
	Owner   string `json:"owner,omitempty"`   //
	Fence   int64  `json:"fence,omitempty"`   //
	Attempt int    `json:"attempt,omitempty"` //
	State   string `json:"state,omitempty"`   //
	Digest  string `json:"digest,omitempty"`  // of the result, or of the response
	Lease   int64  `json:"lease,omitempty"`   // nanoseconds

	// Fingerprint is the store's of a claim, and the client's own name for the
	// content of a request.
	Fingerprint string `json:"fingerprint,omitempty"`

	// Of requests, and of wanted operations.
	Scope   string  `json:"scope,omitempty"`
	Key     string  `json:"key,omitempty"`
	Name    string  `json:"name,omitempty"`    // the kind of operation
	Cancels bool    `json:"cancels,omitempty"` // its client asks for its end
	Patient bool    `json:"patient,omitempty"` // clients continue after an unknown outcome
	Waits   bool    `json:"waits,omitempty"`   // for the outcome
	Status  int     `json:"status,omitempty"`  // of the response
	Says    string  `json:"says,omitempty"`    // what the response says: Outcome, OutcomeUnknown …
	Fresh   bool    `json:"fresh,omitempty"`   // and that it is the first to say so
	Said    *Charge `json:"said,omitempty"`    // and the charge

	// Of outcomes, in responses and in records.
	Of       []string `json:"of,omitempty"`       // the IDs of the effects that it is of
	By       string   `json:"by,omitempty"`       // "" if its run has settled it
	OpenStep string   `json:"openStep,omitempty"` // the step whose end is not stored

	// Of deaths.
	Point string   `json:"point,omitempty"`
	Visit int      `json:"visit,omitempty"`
	Under []string `json:"under,omitempty"` // operations that were at the point; or in progress, if Point is empty
}

// History is the log of one process, appended to a file of its own: lines that were
// written are there after SIGKILL.
type History struct {
	f       *os.File
	process int
	calls   atomic.Int64
}

// OpenHistory creates the history of a process in dir.
func OpenHistory(dir string, process int) (*History, error) {
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("history-%06d", process)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &History{f: f, process: process}, nil
}

// Add appends an event that happens now.
func (h *History) Add(ev Event) { h.append(ev, Now()) }

func (h *History) append(ev Event, at int64) {
	ev.At, ev.Process = at, h.process
	line, err := json.Marshal(ev)
	if err == nil {
		_, err = h.f.Write(append(line, '\n')) // one write: lines of several goroutines do not mix
	}
	if err != nil {
		panic(fmt.Sprintf("crashtest: the history cannot be written: %v", err)) // without it nothing can be judged
	}
}

// Begin appends an invocation, and returns what appends its end.
func (h *History) Begin(ev Event) (end func(Event)) {
	ev.Kind, ev.Call = Invoke, h.calls.Add(1)
	h.Add(ev)
	return func(last Event) {
		at := Now()
		last.Call, last.Verb, last.ID = ev.Call, ev.Verb, ev.ID
		h.append(last, at)
	}
}

// Close closes the file.
func (h *History) Close() error { return h.f.Close() }

// ReadHistory returns the events of all processes in dir, process by process.
func ReadHistory(dir string) ([]Event, error) { return readLines[Event](dir, "history-*") }

// readLines reads lines of JSON. The last line of a file may be torn, as its
// process was killed while it wrote it: then it was not written.
func readLines[T any](dir, pattern string) (all []T, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if all, err = appendLines(all, path); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func appendLines[T any](all []T, path string) ([]T, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return all, nil // the end, or a torn line
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", filepath.Base(path), n, err)
		}
		all = append(all, v)
	}
}

// OperationID is how the store knows a key.
func OperationID(scope, key string) string { return store.Digest("", scope, key).String() }
