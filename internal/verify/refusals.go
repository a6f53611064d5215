package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

func mismatched(ctx context.Context, s *service, op operation) (Result, string) {
	other, stamp := s.stamped(s.o.Other)
	a := s.post(ctx, other, op.quoted)
	switch n := s.runs(stamp); {
	case n > 0:
		return Fail, fmt.Sprintf("it was executed (%v): compare a digest of the request", a)
	case a.ok():
		return Fail, a.String() + ": the client concludes that its second, different request succeeded"
	case a.status == 422:
		return Pass, a.String()
	case a.refused():
		return Warn, a.String() + " where 422 is expected"
	}
	return Fail, a.String() + ", where 422 is expected"
}

// elsewhere sends the operation to a path that, most likely, is none of the service's.
func elsewhere(ctx context.Context, s *service, op operation) (Result, string) {
	u, err := url.Parse(s.o.URL)
	if err != nil {
		return Skip, err.Error()
	}
	if a := s.again(ctx, op); a.status != op.first.status || a.body != op.first.body {
		return Skip, "a retry does not get the first answer here either"
	}
	_, unused := fresh()
	u = u.JoinPath("stet-verify-" + unused)
	before := s.runs(op.stamp)
	a := s.postTo(ctx, u.String(), op.body, op.quoted)
	again := s.again(ctx, op)
	switch {
	case a.ok() && (a.body == op.first.body && s.runs(op.stamp) == before || mark(a) != ""):
		return Fail, fmt.Sprintf("%s: %v, the answer of another operation: compare method and path, too", u.Path, a)
	case again.status != op.first.status || again.body != op.first.body:
		return Fail, fmt.Sprintf("after a request to %s (%v), a retry of the first got %v, or another body", u.Path, a, again)
	case a.ok():
		return Warn, fmt.Sprintf("%s: %v: it was executed as another operation", u.Path, a)
	case a.refused():
		return Pass, a.String()
	}
	return Warn, fmt.Sprintf("%s: %v", u.Path, a)
}

func repeated(ctx context.Context, s *service, _ operation) (Result, string) {
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

// malformedKeys are field values that are no key, made from a good one. A service that
// looks at the length only takes those as long as a UUID.
var malformedKeys = []struct {
	what  string
	field func(key string) string
}{
	{"an empty key", func(string) string { return `""` }},
	{"an empty header", func(string) string { return `` }},
	{"spaces", func(string) string { return `"   "` }},
	{"as many spaces as a UUID has bytes", func(key string) string { return `"` + strings.Repeat(" ", len(key)) + `"` }},
	{"an unterminated quote", func(string) string { return `"abc` }},
	{"a UUID with an unterminated quote", func(key string) string { return `"` + key }},
	{"a TAB in quotes", func(string) string { return "\"a\tb\"" }},
	{"a TAB in a UUID", func(key string) string { return `"` + key[:8] + "\t" + key[9:] + `"` }},
	{"a byte beyond ASCII", func(string) string { return "\"a\xc3\xa9\"" }},
	{"a byte beyond ASCII in a UUID", func(key string) string { return `"` + key[:34] + "\xc3\xa9" + `"` }},
	{"65,536 bytes", func(string) string { return `"` + strings.Repeat("k", 65536) + `"` }},
}

func malformed(ctx context.Context, s *service, _ operation) (Result, string) {
	worst, details := Pass, []string(nil)
	for _, m := range malformedKeys {
		body, stamp := s.stamped(s.o.Body)
		_, key := fresh()
		r, detail := s.mustRefuse(m.what, s.post(ctx, body, m.field(key)), stamp)
		if detail != "" {
			details = append(details, detail)
		}
		if r == Fail || worst == Pass {
			worst = r
		}
	}
	return worst, strings.Join(details, "; ")
}

func missing(ctx context.Context, s *service, _ operation) (Result, string) {
	body, stamp := s.stamped(s.o.Body)
	a := s.post(ctx, body)
	if a.ok() || s.runs(stamp) > 0 {
		return Warn, "keys are optional here: a request without one is executed unprotected"
	}
	return s.mustRefuse("no key", a, stamp)
}

func problem(ctx context.Context, s *service, op operation) (Result, string) {
	other, _ := s.stamped(s.o.Other)
	a := s.post(ctx, other, op.quoted)
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
