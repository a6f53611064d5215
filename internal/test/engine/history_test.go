package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/observe/stetlog"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// recording is a store that counts the calls about histories, and has the last entry.
type recording struct {
	*memory.Store
	calls atomic.Int64
	data  atomic.Pointer[[]byte] // of the last entry
	block bool
}

func (r *recording) AddHistory(ctx context.Context, id store.ID, e store.HistoryEntry) error {
	r.calls.Add(1)
	r.data.Store(&e.Data)
	if r.block {
		<-ctx.Done()
		return ctx.Err()
	}
	return r.Store.AddHistory(ctx, id, e)
}

func (r *recording) History(ctx context.Context, ids []store.ID, most int) ([][]store.HistoryEntry, error) {
	r.calls.Add(1)
	return r.Store.History(ctx, ids, most)
}

func newRecording() *recording { return &recording{Store: memory.New(memory.Options{})} }

// historyOf returns the history of op.
func historyOf(t *testing.T, e *stet.Engine) []observe.HistoryEntry {
	t.Helper()
	rec, err := e.Store().Read(t.Context(), e.ID(op.Scope, op.Key))
	if err != nil {
		t.Fatal(err)
	}
	all, err := e.History(t.Context(), store.MaxHistory, rec)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func TestOperationWithoutTroubleCostsNoHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecording()
		e, err := stet.New(s, stet.Options{ErrorLog: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"completed", "completed", "failed", "failed", "permanent"} {
			o := op
			o.Key = key
			_, _ = stet.Do(t.Context(), e, o, func(ctx context.Context) (int, error) {
				switch key {
				case "failed":
					return 0, errors.New("declined")
				case "permanent":
					return 0, stet.Permanent(errors.New("no such account"))
				}
				time.Sleep(time.Minute) // its lease is renewed
				if _, err := stet.Do(ctx, e, o, func(context.Context) (int, error) { return 0, nil }); err == nil {
					t.Error("an operation inside itself was run")
				}
				return 1, nil
			})
		}
		other := op
		other.Key, other.Fingerprint = "completed", stet.NewFingerprint([]byte("other"))
		if _, err := e.Begin(t.Context(), other); stet.KindOf(err) != stet.KindMismatch {
			t.Errorf("another fingerprint: %v", err)
		}
		time.Sleep(time.Hour) // sweeps
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if n := s.calls.Load(); n != 0 {
			t.Errorf("%d calls about histories; want none", n)
		}
	})
}

func TestHistoryHasTheReason(t *testing.T) {
	plain := errors.New("the processor did not answer")
	for name, c := range map[string]struct {
		fn     func(context.Context) (int, error)
		event  string
		reason observe.Reason
		status int
		text   string
	}{
		"declared": {func(ctx context.Context) (int, error) {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return 0, plain
		}, "marked_unknown", observe.ReasonDeclared, 0, plain.Error()},
		"reset": {func(ctx context.Context) (int, error) {
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return 0, fmt.Errorf("post: %w", syscall.ECONNRESET)
		}, "marked_unknown", observe.ReasonReset, 0, "post: "},
		"explained": {func(ctx context.Context) (int, error) {
			stet.FromContext(ctx).Explain(observe.Why{Reason: observe.ReasonUnreadable, Status: 502})
			stet.FromContext(ctx).Declare(stet.MayHaveExecuted, 0)
			return 0, plain
		}, "marked_unknown", observe.ReasonUnreadable, 502, plain.Error()},
		"retryable": {func(context.Context) (int, error) {
			return 0, stet.Retryable(context.DeadlineExceeded)
		}, "released", observe.ReasonTimedOut, 0, "deadline"},
		"run timeout": {func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, context.Cause(ctx)
		}, "timed_out", observe.ReasonTimedOut, 0, stet.ErrRunTimeout.Error()},
		"panicked": {func(context.Context) (int, error) { panic("oh") }, "settled", observe.ReasonPanicked, 0, ""},
		"explained, and completed": {func(ctx context.Context) (int, error) {
			stet.FromContext(ctx).Explain(observe.Why{Status: 502})
			return 1, nil
		}, "", "", 0, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1, Observer: stetlog.New(stetlog.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}), ErrorLog: slog.New(slog.DiscardHandler)})
			func() {
				defer func() { _ = recover() }()
				_, _ = stet.Do(t.Context(), e, op, c.fn)
			}()
			synctest.Wait()
			got := historyOf(t, e)
			if c.event == "" {
				if len(got) > 0 {
					t.Errorf("%s: %+v", name, got)
				}
				return
			}
			if len(got) == 0 || got[0].Event != c.event || got[0].Reason != c.reason || got[0].Status != c.status || !strings.Contains(got[0].Error, c.text) ||
				got[0].Process != os.Getpid() || got[0].Attempt != 1 || got[0].At.IsZero() {
				t.Errorf("%s: the history is %+v", name, got)
			}
			if line := log.String(); strings.Contains(line, "level=WARN") && !strings.Contains(line, "reason="+string(c.reason)) {
				t.Errorf("%s: the log has no reason: %s", name, line)
			}
		})
	}
}

func TestAbandonedRunIsInTheHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecording()
		die(t, s, op)
		e := newEngine(t, s, stet.Options{SweepEvery: -1, Policy: stet.Policy{Verify: func(context.Context, stet.Status) (stet.Resolution, error) { return stet.CannotKnow(), nil }}})
		time.Sleep(time.Hour)
		check := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			got := historyOf(t, e)
			if len(got) != len(want) {
				t.Fatalf("%s: %+v; want %q", when, got, want)
			}
			for i, entry := range got {
				if text := fmt.Sprint(entry.Event, " ", entry.Reason, " ", entry.Text); text != want[i] || entry.Process != os.Getpid() {
					t.Errorf("%s: entry %d is %q of process %d; want %q of %d", when, i, text, entry.Process, want[i], os.Getpid())
				}
			}
		}
		check("before a claim", "lease_expired process_gone ")
		if n := s.calls.Load(); n != 1 { // historyOf
			t.Errorf("%d calls about histories; want 1", n)
		}
		for range 5 { // the same answer is stored once
			if _, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindUnknown {
				t.Fatal(err)
			}
		}
		check("after the verifier", "lease_expired process_gone ", "resolved verifier it cannot be known")
		rec, err := s.Read(t.Context(), e.ID(op.Scope, op.Key))
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Resolve(observe.WithOperator(t.Context(), "mia", "the books have it"), rec, "", stet.ItHappened(stet.Outcome{})); err != nil {
			t.Fatal(err)
		}
		check("after the operator", "resolved verifier it cannot be known", "resolved operator the books have it (it happened: completed)")
		if got := historyOf(t, e); got[1].By != "mia" {
			t.Errorf("resolved by %q", got[1].By)
		}
	})
}

func TestHistoryDelaysNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecording()
		s.block = true
		e, err := stet.New(s, stet.Options{SweepEvery: -1, ErrorLog: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for i := range 300 { // more than wait
			o := op
			o.Key = fmt.Sprint(i)
			if _, err := stet.Do(t.Context(), e, o, func(context.Context) (int, error) { return 0, stet.Retryable(errors.New("busy")) }); stet.KindOf(err) != stet.KindRetryable {
				t.Fatal(err)
			}
		}
		if d := time.Since(begun); d > 0 { // of the clock of synctest
			t.Errorf("300 runs took %v while the history could not be written", d)
		}
		begun = time.Now()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begun); d > 5*time.Second {
			t.Errorf("Close took %v", d)
		}
	})
}

// panics is an error whose methods panic.
type panics struct{}

func (panics) Error() string   { panic("no text") }
func (panics) Is(error) bool   { panic("no comparison") }
func (panics) Unwrap() error   { return nil }
func (panics) Timeout() bool   { panic("no timeout") }
func (panics) Temporary() bool { panic("no time") }

func TestErrorWithPanickingMethods_EndsItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t, memory.New(memory.Options{}), stet.Options{SweepEvery: -1, ErrorLog: slog.New(slog.DiscardHandler)})
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run.Do(t.Context(), nil, func(context.Context) (stet.Outcome, error) {
			run.Declare(stet.MayHaveExecuted, 0)
			return stet.Outcome{Failed: true}, panics{}
		}); stet.KindOf(err) != stet.KindUnknown {
			t.Fatal(stet.KindOf(err))
		}
		synctest.Wait()
		got := historyOf(t, e)
		if len(got) != 1 || got[0].Reason != observe.ReasonDeclared || !strings.Contains(got[0].Error, "panicked") {
			t.Errorf("the history is %+v", got)
		}
		if rec, err := e.Store().Read(t.Context(), run.ID()); err != nil || rec.State != store.Unknown {
			t.Errorf("the record is %v, %v; its lease must not be renewed", rec.State, err)
		}
	})
}

func TestHistoryIsEncrypted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRecording()
		e := newEngine(t, s, stet.Options{SweepEvery: -1, ErrorLog: slog.New(slog.DiscardHandler),
			Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: bytes.Repeat([]byte{7}, 32)}}}})
		_, _ = stet.Do(t.Context(), e, op, func(context.Context) (int, error) { return 0, stet.Retryable(errors.New("card 4242")) })
		synctest.Wait()
		if got := historyOf(t, e); len(got) != 1 || got[0].Error != "card 4242" {
			t.Errorf("the history is %+v", got)
		}
		if data := s.data.Load(); data == nil || bytes.Contains(*data, []byte("4242")) || bytes.Contains(*data, []byte("released")) {
			t.Errorf("the store has %q", data)
		}
		other := newEngine(t, s, stet.Options{SweepEvery: -1})
		if got := historyOf(t, other); len(got) != 1 || !got[0].Sealed || got[0].Attempt != 1 || got[0].At.IsZero() {
			t.Errorf("without the key the history is %+v", got)
		}
	})
}
