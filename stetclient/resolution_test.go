package stetclient_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
)

type answerer = func(*http.Request) (*http.Response, error)

// outcome is a possible result of one attempt.
type outcome struct {
	name      string
	answer    answerer
	retried   bool
	after     time.Duration // at least this long is waited
	execution stet.Execution
}

func outcomes() []outcome {
	date := time.Date(2000, 1, 1, 12, 0, 0, 0, time.UTC)
	expires := date.AddDate(0, 0, 30).Format(http.TimeFormat)
	const may, no, yes = stet.MayHaveExecuted, stet.NotExecuted, stet.Executed
	return []outcome{
		{"reset", fails(errReset), true, 0, may},
		{"refused connection", fails(errDial), true, 0, no},
		{"wrong certificate", fails(&tls.CertificateVerificationError{Err: errors.New("expired")}), false, 0, no},
		{"time-out of the attempt", hangs, true, 0, may},
		{"201", status(201), false, 0, yes},
		{"202", status(202, "Retry-After", "3"), false, 0, yes},
		{"303", status(303), false, 0, may},
		{"400", status(400), false, 0, may},
		{"400 that says retryable", problem(400, "true", "not executed"), false, 0, no},
		{"401", status(401), false, 0, no},
		{"404", status(404), false, 0, may},
		{"408", status(408), true, 0, may},
		{"409", status(409), true, 0, may},
		{"409 with seconds", status(409, "Retry-After", "7"), true, 7 * time.Second, may},
		{"409 replayed", status(409, "Idempotent-Replayed", "true"), false, 0, yes},
		{"422", status(422, "Retry-After", "1"), false, 0, may},
		{"425", status(425), true, 0, no},
		{"429 with a date", status(429, "Date", date.Format(http.TimeFormat), "Retry-After", date.Add(9*time.Second).Format(http.TimeFormat)), true, 9 * time.Second, no},
		{"429 with a date past", status(429, "Date", date.Format(http.TimeFormat), "Retry-After", date.Add(-time.Hour).Format(http.TimeFormat)), true, 0, no},
		{"500", status(500), true, 0, may},
		{"500 replayed", status(500, "Idempotent-Replayed", "true"), false, 0, yes},
		{"501", status(501), false, 0, may},
		{"503", status(503), true, 0, may},
		{"503 with seconds", status(503, "Retry-After", "2"), true, 2 * time.Second, no},
		{"503 with nonsense", status(503, "Retry-After", "soon"), true, 0, no},
		{"stet's unknown outcome", answer(504, `{"type":"https://github.com/stet-go/stet/blob/main/docs/problems.md#outcome-unknown","retryable":true,"execution":"may have executed"}`,
			"Content-Type", "application/problem+json", "Retry-After", "5"), true, 5 * time.Second, may},
		{"retryable problem", problem(500, "true", "not executed"), true, 0, no},
		{"final problem", problem(503, "false", "may have executed"), false, 0, may},
		{"final problem, executed", problem(410, "false", "executed"), false, 0, yes},
		{"stored 429", status(429, "Retry-After", "2", "Idempotency-Execution", "executed"), false, 0, yes},
		{"200, not executed of another service", status(200, "Idempotency-Execution", "not executed"), false, 0, yes},
		{"409, not executed of another service", status(409, "Idempotency-Execution", "not executed"), true, 0, may},
		{"422, not executed of another service", status(422, "Idempotency-Execution", "not executed"), false, 0, may},
		{"500, not executed of another service", status(500, "Idempotency-Execution", "not executed"), true, 0, may},
		{"429, not executed of another service", status(429, "Idempotency-Execution", "not executed"), true, 0, no},
		{"in-flight, not executed of another service", problem(409, "true", "may have executed", "Idempotency-Execution", "not executed"), true, 0, may},
		{"stored 200, not executed", status(200, "Idempotency-Expires", expires, "Idempotency-Execution", "not executed"), false, 0, no},
		{"stored 409, not executed", status(409, "Idempotency-Expires", expires, "Idempotency-Execution", "not executed"), false, 0, no},
		{"stored 422, not executed", status(422, "Idempotency-Expires", expires, "Idempotency-Execution", "not executed"), false, 0, no},
		{"stored 500, not executed", status(500, "Idempotency-Expires", expires, "Idempotency-Execution", "not executed"), false, 0, no},
		{"stored retryable problem, not executed", problem(500, "true", "may have executed", "Idempotency-Expires", expires, "Idempotency-Execution", "not executed"), false, 0, no},
		{"replay of a refusal without effect", status(409, "Idempotent-Replayed", "true", "Idempotency-Execution", "not executed"), false, 0, no},
		{"problem of another operation", answer(409, `{"retryable":true,"execution":"not executed"}`, "Content-Type", "application/problem+json",
			"Idempotency-Execution", "executed"), false, 0, yes},
		{"final problem of this one", answer(500, `{"retryable":false,"execution":"executed"}`, "Content-Type", "application/problem+json",
			"Idempotency-Execution", "may have executed"), false, 0, may},
		{"429 with an unknown execution", status(429, "Idempotency-Execution", "perhaps"), true, 0, no},
		{"damaged problem", answer(500, `{"retryable":`, "Content-Type", "application/problem+json"), true, 0, may},
		{"problem of another service", answer(500, `{"title":"x","retryable":false}`, "Content-Type", "application/problem+json"), true, 0, may},
	}
}

// TestOutcomeByAttempt checks for each outcome, as that of each attempt: whether
// it is retried, after how long, with which key and body, and the result of the
// caller.
func TestOutcomeByAttempt(t *testing.T) {
	const attempts = 5
	policy := stetclient.Policy{MaxAttempts: attempts, MaxElapsed: time.Hour, AttemptTimeout: 10 * time.Second, Base: 100 * time.Millisecond, Cap: 300 * time.Millisecond}
	for _, o := range outcomes() {
		for n := 1; n <= attempts; n++ {
			t.Run(o.name+" at "+strconv.Itoa(n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					answers := make([]answerer, 0, n+1)
					for range n - 1 {
						answers = append(answers, fails(errDial)) // known to have had no effect
					}
					tr, s := newClient(t, stetclient.Options{Policy: policy}, append(answers, o.answer, status(201))...)
					res, _, err := post(t.Context(), t, tr, `{"amount":42}`)
					checkOutcome(t, o, n, attempts, s, res, err)
				})
			})
		}
	}
}

func checkOutcome(t *testing.T, o outcome, n, attempts int, s *script, res *http.Response, err error) {
	t.Helper()
	want := n
	if o.retried {
		want = min(n+1, attempts)
	}
	s.wantAttempts(want)
	bound := 100 * time.Millisecond
	for i := 1; i < len(s.sent); i++ {
		least, most := time.Duration(0), bound
		if i == n {
			least, most = o.after, o.after+bound
			if o.name == "time-out of the attempt" {
				least, most = 10*time.Second, 10*time.Second+bound
			}
		}
		if wait := s.sent[i].at.Sub(s.sent[i-1].at); wait < least || wait > most {
			t.Errorf("attempt %d came after %v, want %v to %v", i+1, wait, least, most)
		}
		bound = min(2*bound, 300*time.Millisecond)
		if s.sent[i].header.Get("Idempotency-Key") != s.sent[0].header.Get("Idempotency-Key") || s.sent[i].body != s.sent[0].body {
			t.Errorf("attempt %d is %v %q, the first was %v %q", i+1, s.sent[i].header, s.sent[i].body, s.sent[0].header, s.sent[0].body)
		}
	}
	switch {
	case o.retried && n < attempts: // the next one succeeds
		if err != nil || res.StatusCode != 201 {
			t.Fatalf("got %v, %v, want 201", res, err)
		}
	case o.retried:
		wantError(t, err, stetclient.ReasonAttempts, o.execution)
		return
	case o.name == "wrong certificate":
		wantError(t, err, stetclient.ReasonFinal, stet.NotExecuted)
		return
	case err != nil:
		t.Fatal(err)
	}
	info, ok := stetclient.InfoOf(res)
	if !ok || info.Attempts != want || `"`+info.Key+`"` != s.sent[0].header.Get("Idempotency-Key") {
		t.Errorf("info %+v, want %d attempts", info, want)
	}
	if !o.retried && info.Execution != o.execution {
		t.Errorf("the caller receives %v, want %v", info.Execution, o.execution)
	}
}

// TestDocumentedProblems checks the client with the problems of docs/problems.md.
func TestDocumentedProblems(t *testing.T) {
	page, err := os.ReadFile("../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := regexp.MustCompile(`(?m)^## ([a-z-]+)\n\n(\d{3}), (not )?retryable, (not executed|executed|may have executed)\.`).FindAllSubmatch(page, -1)
	if len(sections) < 15 {
		t.Fatalf("found %d problems only", len(sections))
	}
	for _, m := range sections {
		t.Run(string(m[1]), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				code, _ := strconv.Atoi(string(m[2]))
				retryable := len(m[3]) == 0
				tr, s := newClient(t, stetclient.Options{}, problem(code, strconv.FormatBool(retryable), string(m[4])), status(201))
				res, _, err := post(t.Context(), t, tr, "x")
				if err != nil {
					t.Fatal(err)
				}
				if again := res.StatusCode == 201; again != (retryable && code != 400) {
					t.Errorf("retried: %v, and the document says %v", again, retryable)
				}
				info, _ := stetclient.InfoOf(res)
				if len(s.sent) == 1 && (info.Execution.String() != string(m[4]) || info.Problem == nil || info.Problem.Title != "T") {
					t.Errorf("info %+v, want %s", info, m[4])
				}
			})
		})
	}
}

func TestClassifyCanRetryAStoredRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := func(res *http.Response, v stetclient.Resolution) stetclient.Resolution {
			v.Retry = res.StatusCode == 409
			return v
		}
		tr, s := newClient(t, stetclient.Options{Service: stetclient.Service{Classify: again}}, status(409, "Idempotency-Expires", "x", "Idempotency-Execution", "not executed"), status(201))
		if res, _, err := post(t.Context(), t, tr, "x"); err != nil || res.StatusCode != 201 {
			t.Fatalf("got %v, %v, want 201", res, err)
		}
		s.wantAttempts(2)
	})
}

func TestHeaderOfStripeDecidesWhetherToRetry(t *testing.T) {
	for _, c := range []struct {
		name     string
		answer   answerer
		attempts int
	}{
		{"conflict, not worth it", status(409, "Stripe-Should-Retry", "false"), 1},
		{"402, worth it", status(402, "Stripe-Should-Retry", "true"), 2},
		{"400 is final all the same", status(400, "Stripe-Should-Retry", "true"), 1},
		{"500 without a word", status(500), 2},
		{"500 replayed", status(500, "Idempotent-Replayed", "true"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, s := newClient(t, stetclient.Options{Service: stetclient.Stripe()}, c.answer, status(200))
				res, _, err := post(t.Context(), t, tr, "x")
				if err != nil {
					t.Fatal(err)
				}
				s.wantAttempts(c.attempts)
				info, _ := stetclient.InfoOf(res)
				if key := s.sent[0].header.Get("Idempotency-Key"); key != info.Key {
					t.Errorf("Stripe received the key %s, want it raw: %s", key, info.Key)
				}
			})
		})
	}
}
