package verify

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// check is one point to look at. op is an operation of its own, which succeeded: a
// service that refuses it for another reason is not asked, and the point is skipped.
type check struct {
	name   string
	source string
	look   func(ctx context.Context, s *service, op operation) (Result, string)
}

const ours = "what clients rely on"

// entry is the name of the first point. Without it there is nothing else to look at.
const entry = "a request with a key is accepted"

var checks = []check{
	{"a retry gets the first answer again", "D07, 2.6", replayed},
	{"the same payload under a new key is a new operation", ours, renewed},
	{"a replay says that it is one", ours, marked},
	{"a replay is not stored by caches", ours, uncached},
	{"another payload under the key is refused with 422", "D07, 2.7", mismatched},
	{"another path under the key gets no answer of the first", ours, elsewhere},
	{"retries at the same time execute once", ours, together},
	{"the key without quotes names the same operation", ours, bare},
	{"a key is compared byte by byte", ours, cased},
	{"two keys are refused with 400", "D07, 2.1: an item, not a list", repeated},
	{"malformed keys are refused with 400", "D07, 2.7", malformed},
	{"a missing key is refused with 400", "D07, 2.7, where keys are required", missing},
	{"a refusal is a problem document", "D07, 2.7; RFC 9457", problem},
}

// operation is a request with a key, and the response to the first one.
type operation struct {
	body, stamp string
	quoted, key string
	first       answer
}

// begin sends a new operation.
func (s *service) begin(ctx context.Context) (op operation) {
	op.body, op.stamp = s.stamped(s.o.Body)
	op.quoted, op.key = fresh()
	op.first = s.post(ctx, op.body, op.quoted)
	return op
}

// again sends an operation again.
func (s *service) again(ctx context.Context, op operation) answer {
	return s.post(ctx, op.body, op.quoted)
}

func accepted(s *service, op operation) (Result, string) {
	switch n := s.runs(op.stamp); {
	case !op.first.ok():
		return Fail, op.first.String() + "; give it a body and headers with which a request succeeds"
	case n == 0:
		return Fail, "the counting service was not reached: let the service forward to it"
	case n > 1:
		return Fail, fmt.Sprintf("one request arrived %d times", n)
	}
	return Pass, op.first.String()
}

func replayed(ctx context.Context, s *service, op operation) (Result, string) {
	for range 3 {
		again := s.again(ctx, op)
		if again.status != op.first.status || again.body != op.first.body || again.err != nil {
			return Fail, fmt.Sprintf("the first answer was %v with %d bytes, the next %v with %d bytes: store the first one, and hand it out",
				op.first, len(op.first.body), again, len(again.body))
		}
		for _, name := range []string{"Content-Type", "Location"} {
			if again.header.Get(name) != op.first.header.Get(name) {
				return Fail, fmt.Sprintf("%s was %q, and is %q in the next answer", name, op.first.header.Get(name), again.header.Get(name))
			}
		}
	}
	if n := s.runs(op.stamp); n > 1 {
		return Fail, fmt.Sprintf("it was executed %d times", n)
	} else if n == 1 {
		return Pass, "4 requests, 1 execution"
	}
	return Pass, "4 requests, one answer"
}

// replayMarks are headers by which services say that an answer is a replay.
var replayMarks = []string{"Idempotent-Replayed", "Idempotency-Replayed", "X-Idempotent-Replayed"}

// mark returns the header that marks an answer as a replay, "" if none does.
func mark(a answer) string {
	for _, name := range replayMarks {
		if v := a.header.Get(name); v != "" {
			return name + ": " + v
		}
	}
	return ""
}

func renewed(ctx context.Context, s *service, op operation) (Result, string) {
	quoted, _ := fresh()
	a := s.post(ctx, op.body, quoted)
	switch n := s.runs(op.stamp); {
	case a.ok() && (n == 1 || n < 0 && mark(a) != ""):
		return Fail, "it was not executed: it got the outcome of another key; who means the same thing twice has no way to say so"
	case a.ok():
		return Pass, ""
	case a.refused():
		return Warn, a.String() + ": the payload is compared, too; who means the same thing twice must change it"
	}
	return Fail, a.String()
}

func marked(ctx context.Context, s *service, op operation) (Result, string) {
	if m := mark(s.again(ctx, op)); m != "" {
		return Pass, m
	}
	return Warn, "a client cannot tell a replay from an execution; Idempotent-Replayed: true is what others send"
}

func uncached(ctx context.Context, s *service, op operation) (Result, string) {
	if v := s.again(ctx, op).header.Get("Cache-Control"); !strings.Contains(v, "no-store") && !strings.Contains(v, "private") {
		return Warn, fmt.Sprintf("Cache-Control is %q; no-store is safe", v)
	}
	return Pass, ""
}

func together(ctx context.Context, s *service, _ operation) (Result, string) {
	body, stamp := s.stamped(s.o.Body)
	quoted, _ := fresh()
	answers := make([]answer, herd)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = s.post(ctx, body, quoted) })
	}
	wg.Wait()
	final := s.post(ctx, body, quoted)
	conflicts, hints := 0, 0
	for _, a := range answers {
		switch {
		case a.err != nil:
			return Fail, a.String()
		case a.status == 409 || a.status == 425 || a.status == 503 || a.status == 429:
			if conflicts++; a.header.Get("Retry-After") != "" {
				hints++
			}
		case a.status != final.status || a.body != final.body:
			return Fail, fmt.Sprintf("of %d requests one got %v and another %v, or another body: they must all get the outcome of one execution, or 409", herd, a, final)
		}
	}
	n := s.runs(stamp)
	detail := fmt.Sprintf("%d requests: %d got a 409 and must wait, the others got one outcome", herd, conflicts)
	switch {
	case n > 1:
		return Fail, fmt.Sprintf("%d requests with one key were executed %d times", herd, n)
	case !final.ok():
		return Fail, fmt.Sprintf("%d requests, %d of them told to wait, and one after them got %v: none has succeeded", herd, conflicts, final)
	case conflicts == herd:
		return Warn, fmt.Sprintf("all %d requests got a 409; only a later one was executed", herd)
	case hints < conflicts:
		return Warn, detail + "; not all of the refusals had a Retry-After"
	}
	return Pass, detail
}

func bare(ctx context.Context, s *service, op operation) (Result, string) {
	a := s.post(ctx, op.body, op.key)
	switch n := s.runs(op.stamp); {
	case n > 1 || n < 0 && a.ok() && a.body != op.first.body:
		return Fail, "it was executed again: the same key in two forms must not be two keys"
	case a.status == op.first.status && a.body == op.first.body:
		return Pass, ""
	case a.status == 400:
		return Pass, "it is refused: only the structured form (RFC 9651) is a key"
	}
	return Fail, a.String()
}

func cased(ctx context.Context, s *service, op operation) (Result, string) {
	if strings.ToUpper(op.key) == op.key {
		return Skip, "the key that was drawn has no letters" // of 2^30 UUIDs one
	}
	other, stamp := s.stamped(s.o.Other)
	a := s.post(ctx, other, strings.ToUpper(op.quoted))
	switch n := s.runs(stamp); {
	case a.ok() && n != 0 && mark(a) == "":
		return Pass, ""
	case a.ok():
		return Fail, "another payload got the answer of a key that differs in case"
	case a.status == 422:
		return Warn, "keys that differ in case are the same key here"
	}
	return Warn, a.String() + " for a key that differs from another one in its case"
}
