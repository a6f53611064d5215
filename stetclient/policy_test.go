package stetclient_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stetclient"
)

func TestWaitsAreFullJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, cap = 4000, 400 * time.Millisecond
		p := stetclient.Policy{MaxAttempts: 5, Base: 100 * time.Millisecond, Cap: cap}
		var sum, below [4]float64
		bounds := [4]time.Duration{100 * time.Millisecond, 200 * time.Millisecond, cap, cap}
		for range calls {
			var last time.Time
			n := 0
			_, _ = stetclient.Retry(t.Context(), p, func(context.Context) (int, error) {
				if n > 0 {
					wait := float64(time.Since(last)) / float64(bounds[n-1])
					sum[n-1] += wait
					if wait > 1.000001 {
						t.Errorf("wait %d is %v of its bound", n, wait)
					}
					if wait < 0.1 {
						below[n-1]++
					}
				}
				last, n = time.Now(), n+1
				return 0, errReset
			})
		}
		for i := range sum {
			mean, low := sum[i]/calls, below[i]/calls
			if math.Abs(mean-0.5) > 0.03 || math.Abs(low-0.1) > 0.03 {
				t.Errorf("wait %d: the mean is %.3f of the bound, and %.3f are in its first tenth; want 0.5 and 0.1", i+1, mean, low)
			}
		}
	})
}

func TestSleepObeysTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the user has left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(gone) })
		tr, s := newClient(t, stetclient.Options{}, status(409, "Retry-After", "60"))
		began := time.Now()
		_, _, err := post(ctx, t, tr, "x")
		e := wantError(t, err, stetclient.ReasonContext, stet.MayHaveExecuted)
		if !errors.Is(err, gone) || time.Since(began) != 3*time.Second || e.Waited != 3*time.Second {
			t.Errorf("%v after %v, having waited %v; want the cause after 3s", err, time.Since(began), e.Waited)
		}
		s.wantAttempts(1)
	})
}

func TestRetryAfterDateWithoutADateIsByTheOwnClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, s := newClient(t, stetclient.Options{}, status(503, "Retry-After", time.Now().Add(8*time.Second).UTC().Format(http.TimeFormat)), status(201))
		if _, _, err := post(t.Context(), t, tr, "x"); err != nil {
			t.Fatal(err)
		}
		if wait := s.sent[1].at.Sub(s.sent[0].at); wait < 8*time.Second || wait > 9*time.Second {
			t.Errorf("waited %v, want 8s and some", wait)
		}
	})
}

func TestCallEndsIfTheNextAttemptWouldBeTooLate(t *testing.T) {
	for name, run := range map[string]func(context.Context, *testing.T) error{
		"deadline": func(ctx context.Context, t *testing.T) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			tr, _ := newClient(t, stetclient.Options{}, status(503, "Retry-After", "60"))
			_, _, err := post(ctx, t, tr, "x")
			return err
		},
		"MaxElapsed": func(ctx context.Context, t *testing.T) error {
			tr, _ := newClient(t, stetclient.Options{Policy: stetclient.Policy{MaxElapsed: 30 * time.Second}}, status(503, "Retry-After", "60"))
			_, _, err := post(ctx, t, tr, "x")
			return err
		},
		"permanent": func(ctx context.Context, t *testing.T) error {
			tr, _ := newClient(t, stetclient.Options{}, status(503, "Retry-After", "60"), status(503, "Retry-After", "99999999999999999999"))
			_, _, err := post(ctx, t, tr, "x")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				e := wantError(t, run(t.Context(), t), stetclient.ReasonTime, stet.NotExecuted)
				if took := time.Since(began); took > 61*time.Second || name != "permanent" && took > 0 {
					t.Errorf("it took %v", took)
				}
				if e.RetryAfter < time.Minute || e.Response == nil || e.Response.StatusCode != 503 {
					t.Errorf("the service asked for 60s, and the error has %v, %v", e.RetryAfter, e.Response)
				}
			})
		})
	}
}

func TestAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, s := newClient(t, stetclient.Options{Policy: stetclient.Policy{MaxAttempts: 2, AttemptTimeout: time.Second}}, hangs)
		began := time.Now()
		_, _, err := post(t.Context(), t, tr, "x")
		e := wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted)
		if !e.Timeout() {
			t.Error("it is no time-out")
		}
		s.wantAttempts(2)
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestEndedContextSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tr, s := newClient(t, stetclient.Options{}, status(201))
	_, _, err := post(ctx, t, tr, "x")
	wantError(t, err, stetclient.ReasonContext, stet.NotExecuted)
	s.wantAttempts(0)
	_, err = stetclient.Retry(ctx, stetclient.Policy{}, func(context.Context) (int, error) { t.Error("called"); return 0, nil })
	wantError(t, err, stetclient.ReasonContext, stet.NotExecuted)
}

func TestRetryWithoutHTTP(t *testing.T) {
	plain := errors.New("broken pipe")
	for _, c := range []struct {
		name   string
		errs   []error
		calls  int
		reason stetclient.Reason // "": success
		x      stet.Execution
		took   time.Duration
	}{
		{"success", []error{nil}, 1, "", 0, 0},
		{"success after errors", []error{plain, plain, nil}, 3, "", 0, 0},
		{"final", []error{stetclient.Final(plain, stet.NotExecuted)}, 1, stetclient.ReasonFinal, stet.NotExecuted, 0},
		{"final after an unclear one", []error{plain, stetclient.Final(plain, stet.NotExecuted)}, 2, stetclient.ReasonFinal, stet.MayHaveExecuted, 0},
		{"in flight, then done", []error{&stet.Error{Kind: stet.KindInFlight, RetryAfter: 5 * time.Second}, nil}, 2, "", 0, 5 * time.Second},
		{"mismatch", []error{&stet.Error{Kind: stet.KindMismatch, Execution: stet.NotExecuted}}, 1, stetclient.ReasonFinal, stet.NotExecuted, 0},
		{"failed", []error{&stet.Error{Kind: stet.KindFailed, Execution: stet.Executed}}, 1, stetclient.ReasonFinal, stet.Executed, 0},
		{"permanent", []error{&stet.Error{Kind: stet.KindStore, Execution: stet.NotExecuted}}, 4, stetclient.ReasonAttempts, stet.NotExecuted, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, began := 0, time.Now()
				v, err := stetclient.Retry(t.Context(), stetclient.Policy{MaxAttempts: 4}, func(context.Context) (string, error) {
					calls++
					return "value", c.errs[min(calls, len(c.errs))-1]
				})
				if calls != c.calls || time.Since(began) < c.took {
					t.Errorf("%d calls in %v, want %d in %v", calls, time.Since(began), c.calls, c.took)
				}
				if c.reason == "" {
					if err != nil || v != "value" {
						t.Errorf("got %q, %v", v, err)
					}
					return
				}
				wantError(t, err, c.reason, c.x)
				if last := c.errs[len(c.errs)-1]; !errors.Is(err, last) {
					t.Errorf("%v does not wrap %v", err, last)
				}
			})
		})
	}
}

func TestRetryBoundsEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := stetclient.Retry(t.Context(), stetclient.Policy{MaxAttempts: 2, AttemptTimeout: time.Second}, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
		if e := wantError(t, err, stetclient.ReasonAttempts, stet.MayHaveExecuted); !e.Timeout() {
			t.Errorf("%v is no time-out", err)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	stettest.Options(t, "testdata/options.txt", func(o stetclient.Options) error { _, err := stetclient.New(http.DefaultTransport, o); return err })
	if _, err := stetclient.Retry(t.Context(), stetclient.Policy{Base: -1}, func(context.Context) (int, error) { return 1, nil }); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("Retry: got %v, want stet.KindInvalid", err)
	}
	tr, _ := newClient(t, stetclient.Options{}, status(201))
	if _, err := tr.Resume(t.Context(), stetclient.ResumeOptions{}); stet.KindOf(err) != stet.KindInvalid {
		t.Errorf("Resume without a journal: got %v", err)
	}
}

func TestRetryEndsAtFinalErrors(t *testing.T) {
	for reason, want := range map[stetclient.Reason]int{stetclient.ReasonStale: 1, stetclient.ReasonRecorded: 1, stetclient.ReasonFinal: 1, stetclient.ReasonRequest: 1, stetclient.ReasonAttempts: 2} {
		calls := 0
		_, err := stetclient.Retry(t.Context(), quick, func(context.Context) (int, error) {
			calls++
			return 0, &stetclient.Error{Reason: reason}
		})
		if e, ok := errors.AsType[*stetclient.Error](err); !ok || calls != want {
			t.Errorf("%s: %d calls, want %d; %v", reason, calls, want, e)
		}
	}
}
