package stetclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet/stetclient"
	"github.com/stet-go/stet/stetclient/journal"
)

// TestIntents runs the cases of testdata/intents.txt.
func TestIntents(t *testing.T) {
	text, err := os.ReadFile("testdata/intents.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		name, steps, found := strings.Cut(block, "\nservice ")
		if !found {
			continue // the comment
		}
		t.Run(name, func(t *testing.T) {
			lines := strings.Split(steps, "\n")
			s := scenario{t: t, j: open(t, journal.Options{})}
			s.tr, s.service = newClient(t, stetclient.Options{Journal: s.j, Policy: quick}, responses(t, lines[0])...)
			for _, line := range lines[1:] {
				step, want, _ := strings.Cut(line, " => ")
				if got := s.run(strings.Fields(step)); got != want {
					t.Fatalf("%s => %s, want %s", step, got, want)
				}
			}
		})
	}
}

func responses(t *testing.T, words string) (all []answerer) {
	t.Helper()
	for word := range strings.FieldsSeq(words) {
		code, err := strconv.Atoi(word)
		switch {
		case word == "reset":
			all = append(all, fails(errReset))
		case word == "dial":
			all = append(all, fails(errDial))
		case word == "stored":
			all = append(all, status(409, "Idempotency-Expires", "Sat, 01 Jan 2000 12:00:00 GMT", "Idempotency-Execution", "not executed"))
		case word == "cancelled":
			all = append(all, answer(409, cancelledDocument, "Content-Type", "application/problem+json", "Idempotent-Replayed", "true"))
		case word == "refused":
			all = append(all, answer(409, cancelledDocument, "Content-Type", "application/problem+json"))
		case err == nil:
			all = append(all, status(code))
		default:
			t.Fatalf("unknown response %q", word)
		}
	}
	return all
}

type scenario struct {
	t       *testing.T
	j       *journal.Journal
	tr      *stetclient.Transport
	service *script
}

// run makes a step and returns its result.
func (s *scenario) run(step []string) string {
	s.t.Helper()
	name := strings.Join(step[1:], " ")
	switch step[0] {
	case "post":
		ctx := s.t.Context()
		switch name {
		case "":
		case "key":
			ctx = stetclient.WithKey(ctx, "mine")
		default:
			ctx = stetclient.WithIntent(ctx, name)
		}
		return s.post(ctx)
	case "resume":
		last := ""
		got, err := s.tr.Resume(s.t.Context(), stetclient.ResumeOptions{Progress: func(p stetclient.Progress) {
			if p.Err != nil {
				last = ": " + failed(s.t, p.Err)
			}
		}})
		if err != nil {
			s.t.Fatal(err)
		}
		return fmt.Sprintf("%d settled, %d pending%s", got.Settled, got.Pending, last)
	case "forget":
		if err := s.j.Forget(s.t.Context(), name); err != nil {
			return errors.Unwrap(err).Error()
		}
		return "ok"
	case "requests":
		return strconv.Itoa(len(s.service.sent))
	case "keys":
		keys := make(map[string]bool)
		for _, sent := range s.service.sent {
			keys[sent.header.Get("Idempotency-Key")] = true
		}
		return strconv.Itoa(len(keys))
	}
	s.t.Fatalf("unknown step %q", step)
	return ""
}

func (s *scenario) post(ctx context.Context) string {
	s.t.Helper()
	before := len(pending(s.t, s.j))
	res, _, err := post(ctx, s.t, s.tr, "x")
	if err != nil {
		return failed(s.t, err)
	}
	info, _ := stetclient.InfoOf(res)
	if after := len(pending(s.t, s.j)); info.Pending || after > before {
		s.t.Errorf("%d intents are pending after a response, before %d", after, before)
	}
	return fmt.Sprintf("%d, %v", res.StatusCode, info.Execution)
}

// failed returns the text of an error, and checks its kind.
func failed(t *testing.T, err error) string {
	t.Helper()
	e, ok := errors.AsType[*stetclient.Error](err)
	if !ok {
		t.Fatalf("got %v, want a *stetclient.Error", err)
	}
	wantError(t, err, e.Reason, e.Execution)
	text := fmt.Sprintf("%s, %v", e.Reason, e.Execution)
	if e.Pending {
		text += ", pending"
	}
	if e.Reason == stetclient.ReasonRefused && (e.Response == nil || e.Response.StatusCode/100 != http.StatusBadRequest/100) {
		t.Errorf("the refusal has no response: %+v", e)
	}
	return text
}
