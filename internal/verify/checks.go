package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// check is one point to look at.
type check struct {
	name   string
	source string
	first  bool // without it there is nothing else to look at
	look   func(context.Context, *service) (Result, string)
}

const ours = "what clients rely on"

var checks = []check{
	{"a request with a key is accepted", "D07, 2.1", true, accepted},
	{"a retry gets the first answer again", "D07, 2.6", false, replayed},
	{"a replay says that it is one", ours, false, marked},
	{"a replay is not stored by caches", ours, false, uncached},
	{"another payload under the key is refused with 422", "D07, 2.7", false, mismatched},
	{"retries at the same time execute once", ours, false, together},
	{"the key without quotes names the same operation", ours, false, bare},
	{"a key is compared byte by byte", ours, false, cased},
	{"two keys are refused with 400", "D07, 2.1: an item, not a list", false, repeated},
	{"malformed keys are refused with 400", "D07, 2.7", false, malformed},
	{"a missing key is refused with 400", "D07, 2.7, where keys are required", false, missing},
	{"a refusal is a problem document", "D07, 2.7; RFC 9457", false, problem},
}

func accepted(ctx context.Context, s *service) (Result, string) {
	body, stamp := s.stamped(s.o.Body)
	quoted, _ := fresh()
	a := s.post(ctx, body, quoted)
	switch n := s.runs(stamp); {
	case !a.ok():
		return Fail, a.String() + "; give it a body and headers with which a request succeeds"
	case n == 0:
		return Fail, "the counting service was not reached: let the service forward to it"
	case n > 1:
		return Fail, fmt.Sprintf("one request arrived %d times", n)
	}
	return Pass, a.String()
}

func replayed(ctx context.Context, s *service) (Result, string) {
	body, stamp := s.stamped(s.o.Body)
	quoted, _ := fresh()
	first := s.post(ctx, body, quoted)
	for range 3 {
		again := s.post(ctx, body, quoted)
		if again.status != first.status || again.body != first.body || again.err != nil {
			return Fail, fmt.Sprintf("the first answer was %v with %d bytes, the next %v with %d bytes: store the first one, and hand it out",
				first, len(first.body), again, len(again.body))
		}
		for _, name := range []string{"Content-Type", "Location"} {
			if again.header.Get(name) != first.header.Get(name) {
				return Fail, fmt.Sprintf("%s was %q, and is %q in the next answer", name, first.header.Get(name), again.header.Get(name))
			}
		}
	}
	if n := s.runs(stamp); n > 1 {
		return Fail, fmt.Sprintf("it was executed %d times", n)
	} else if n == 1 {
		return Pass, "4 requests, 1 execution"
	}
	return Pass, "4 requests, one answer"
}

// replay returns the second answer to one request.
func (s *service) replay(ctx context.Context) answer {
	body, _ := s.stamped(s.o.Body)
	quoted, _ := fresh()
	s.post(ctx, body, quoted)
	return s.post(ctx, body, quoted)
}

func marked(ctx context.Context, s *service) (Result, string) {
	a := s.replay(ctx)
	for _, name := range []string{"Idempotent-Replayed", "Idempotency-Replayed", "X-Idempotent-Replayed"} {
		if v := a.header.Get(name); v != "" {
			return Pass, name + ": " + v
		}
	}
	return Warn, "a client cannot tell a replay from an execution; Idempotent-Replayed: true is what others send"
}

func uncached(ctx context.Context, s *service) (Result, string) {
	a := s.replay(ctx)
	if v := a.header.Get("Cache-Control"); !strings.Contains(v, "no-store") && !strings.Contains(v, "private") {
		return Warn, fmt.Sprintf("Cache-Control is %q; no-store is safe", v)
	}
	return Pass, ""
}

func mismatched(ctx context.Context, s *service) (Result, string) {
	body, _ := s.stamped(s.o.Body)
	other, stamp := s.stamped(s.o.Other)
	quoted, _ := fresh()
	s.post(ctx, body, quoted)
	a := s.post(ctx, other, quoted)
	switch n := s.runs(stamp); {
	case n > 0:
		return Fail, fmt.Sprintf("it was executed (%v): compare a digest of the request", a)
	case a.ok():
		return Fail, a.String() + ": the client is told that its second, different request succeeded"
	case a.status == 422:
		return Pass, a.String()
	case a.refused():
		return Warn, a.String() + " where 422 is expected"
	}
	return Fail, a.String() + ", where 422 is expected"
}

func together(ctx context.Context, s *service) (Result, string) {
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
	if n := s.runs(stamp); n > 1 {
		return Fail, fmt.Sprintf("%d requests with one key were executed %d times", herd, n)
	}
	detail := fmt.Sprintf("%d requests: %d were told to wait, the others got one outcome", herd, conflicts)
	if hints < conflicts {
		return Warn, detail + "; not all of the refusals had a Retry-After"
	}
	return Pass, detail
}

func bare(ctx context.Context, s *service) (Result, string) {
	body, stamp := s.stamped(s.o.Body)
	quoted, key := fresh()
	first := s.post(ctx, body, quoted)
	a := s.post(ctx, body, key)
	switch n := s.runs(stamp); {
	case n > 1 || n < 0 && a.ok() && a.body != first.body:
		return Fail, "it was executed again: the same key in two forms must not be two keys"
	case a.status == first.status && a.body == first.body:
		return Pass, ""
	case a.status == 400:
		return Pass, "it is refused: only the structured form (RFC 9651) is a key"
	}
	return Fail, a.String()
}

func cased(ctx context.Context, s *service) (Result, string) {
	body, _ := s.stamped(s.o.Body)
	other, stamp := s.stamped(s.o.Other)
	_, key := fresh()
	s.post(ctx, body, `"a`+key+`"`)
	a := s.post(ctx, other, `"A`+key+`"`)
	switch n := s.runs(stamp); {
	case a.ok() && n != 0:
		return Pass, ""
	case a.status == 422:
		return Warn, "keys that differ in case are the same key here"
	}
	return Warn, a.String() + " for a key that differs from another one in its case"
}

func repeated(ctx context.Context, s *service) (Result, string) {
	body, stamp := s.stamped(s.o.Body)
	one, _ := fresh()
	two, _ := fresh()
	return s.mustRefuse("two keys", s.post(ctx, body, one, two), stamp)
}

// mustRefuse judges the answer to a request that names no key.
func (s *service) mustRefuse(what string, a answer, stamp string) (Result, string) {
	switch n := s.runs(stamp); {
	case n > 0:
		return Fail, fmt.Sprintf("%s: it was executed, and nothing protects it", what)
	case a.ok():
		return Fail, fmt.Sprintf("%s: %v: a key that is ignored protects nothing", what, a)
	case a.status == 400:
		return Pass, ""
	case a.refused():
		return Warn, fmt.Sprintf("%s: %v where 400 is expected", what, a)
	case a.err != nil:
		return Warn, fmt.Sprintf("%s: the connection was closed", what)
	}
	return Fail, fmt.Sprintf("%s: %v", what, a)
}

func malformed(ctx context.Context, s *service) (Result, string) {
	worst, details := Pass, []string(nil)
	for _, c := range []struct{ what, field string }{
		{"an empty key", `""`},
		{"an empty header", ``},
		{"spaces", `"   "`},
		{"an unterminated quote", `"abc`},
		{"a TAB in quotes", "\"a\tb\""},
		{"a byte beyond ASCII", "\"a\xc3\xa9\""},
		{"65,536 bytes", `"` + strings.Repeat("k", 65536) + `"`},
	} {
		body, stamp := s.stamped(s.o.Body)
		r, detail := s.mustRefuse(c.what, s.post(ctx, body, c.field), stamp)
		if detail != "" {
			details = append(details, detail)
		}
		if r == Fail || worst == Pass {
			worst = r
		}
	}
	return worst, strings.Join(details, "; ")
}

func missing(ctx context.Context, s *service) (Result, string) {
	body, stamp := s.stamped(s.o.Body)
	a := s.post(ctx, body)
	if a.ok() || s.runs(stamp) > 0 {
		return Warn, "keys are optional here: a request without one is executed unprotected"
	}
	return s.mustRefuse("no key", a, stamp)
}

func problem(ctx context.Context, s *service) (Result, string) {
	body, _ := s.stamped(s.o.Body)
	other, _ := s.stamped(s.o.Other)
	quoted, _ := fresh()
	s.post(ctx, body, quoted)
	a := s.post(ctx, other, quoted)
	if !a.refused() {
		return Skip, "nothing was refused"
	}
	var d struct {
		Type   string
		Title  string
		Status int
	}
	switch media, _, _ := strings.Cut(a.header.Get("Content-Type"), ";"); {
	case media != "application/problem+json":
		return Warn, "the content type is " + strconv.Quote(media)
	case json.Unmarshal([]byte(a.body), &d) != nil:
		return Fail, "the document is not JSON"
	case d.Status != 0 && d.Status != a.status:
		return Fail, fmt.Sprintf("its status says %d, and the response is %d", d.Status, a.status)
	case d.Type == "" || d.Title == "":
		return Warn, "it has no type, or no title"
	}
	return Pass, d.Type
}
