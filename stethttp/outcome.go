package stethttp

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/misuse"
	"github.com/stet-go/stet/store"
)

const (
	jsonType   = "application/json"
	binaryType = "application/octet-stream"
)

// imposedName names the field of a stored response whose content coding its
// first caller did not accept: it does not depend on what a request accepts. A colon
// is in the name of no header field (RFC 9110, section 5.1), so it is never sent, not
// even by a program that does not know it.
const imposedName = ":coding-imposed"

// Outcome returns the outcome that a response is stored as, for a stet.Verify
// that knows how a dead run ended. status is 200 to 999; one of 500 and
// above makes the outcome a failure. Of header, the fields that are never
// stored are left out, and so are Set-Cookie and Content-Length. header and
// body are not copied.
func Outcome(status int, header http.Header, body []byte) (stet.Outcome, error) {
	filter := newHeaderFilter(Options{ReplayedHeader: DefaultReplayedHeader, DropHeaders: []string{"Trailer"}})
	out := response(status, filter.fields(header, nil), body)
	out.Failed = status >= http.StatusInternalServerError
	if !finalStatus(status) || !storable(out) {
		return stet.Outcome{}, misuse.Errorf("stethttp: Outcome: the status %d is not 200 to 999, or there are more than %d header fields and values", status, store.MaxFields)
	}
	if !bodyAllowed(status) && len(body) > 0 {
		return stet.Outcome{}, misuse.Errorf("stethttp: Outcome: a response with status %d has no body", status)
	}
	return out, nil
}

// StoredResponse returns the response that an HTTP client gets for an outcome. Trailers
// have http.TrailerPrefix. An outcome that is Gone is an *stet.Error of kind
// stet.ErrExpired.
func StoredResponse(out stet.Outcome) (status int, header http.Header, body []byte, err error) {
	if out.Gone {
		return 0, nil, nil, &stet.Error{Kind: stet.ErrExpired, Execution: stet.MayHaveExecuted}
	}
	out = (&Middleware{o: Options{ProblemBase: DefaultProblemBase}}).told(out, false, nil)
	header = http.Header{}
	for prefix, fields := range map[string][]store.Field{"": out.Header, http.TrailerPrefix: out.Trailer} {
		for _, f := range fields {
			if !strings.HasPrefix(f.Name, ":") && len(f.Values) > 0 { // those are ours, and never sent
				header[prefix+f.Name] = slices.Clone(f.Values)
			}
		}
	}
	if out.Type != "" {
		header["Content-Type"] = []string{out.Type}
	}
	return out.Status, header, slices.Clone(out.Body), nil
}

// response is the outcome of a response with these fields, which are sorted.
func response(status int, header []store.Field, body []byte) stet.Outcome {
	out := stet.Outcome{Face: store.FaceHTTP, Status: status, Header: header, Body: body}
	i, ok := slices.BinarySearchFunc(header, "Content-Type", func(f store.Field, name string) int { return strings.Compare(f.Name, name) })
	if ok && len(header[i].Values) == 1 && header[i].Values[0] != "" {
		out.Type = header[i].Values[0]
		out.Header = slices.Delete(header, i, i+1)
	}
	return out
}

// told returns the response of an outcome, of any face. It must not be Gone. never says
// that the operation was never begun; failure words the failure of a worker, and may be
// nil.
func (m *Middleware) told(out stet.Outcome, never bool, failure func(text string) (status int, detail string)) stet.Outcome {
	switch {
	case out.Face == store.FaceHTTP, out.Face == store.FaceSQL && out.Status != 0:
		return out
	case out.Reason == store.ReasonTimedOut:
		return m.asResponse(&processingTimedOut, "")
	case out.Reason == store.ReasonCancelled && never:
		return m.asResponse(&operationCancelled, "")
	case out.Reason == store.ReasonCancelled:
		return m.asResponse(&operationBrokenOff, "")
	case out.Reason == store.ReasonPanicked:
		return m.asResponse(&handlerPanicked, "")
	case out.Failed:
		problem, detail := operationFailed, ""
		if failure != nil {
			var status int
			if status, detail = failure(string(out.Body)); 400 <= status && status <= 599 {
				problem.status = status
			}
		}
		return m.asResponse(&problem, detail)
	case len(out.Body) == 0:
		return stet.Outcome{Face: store.FaceHTTP, Status: http.StatusNoContent}
	}
	if out.Status == 0 {
		out.Status = http.StatusOK
	}
	if out.Type == "" {
		if out.Type = binaryType; json.Valid(out.Body) {
			out.Type = jsonType
		}
	}
	return out
}

// field returns the values of a header field of an outcome, and whether it says
// something of it.
func field(out stet.Outcome, name string) ([]string, bool) {
	for _, f := range out.Header {
		if f.Name == name {
			return f.Values, true
		}
	}
	return nil, false
}

// storable reports whether the fields are not too many to be kept.
func storable(out stet.Outcome) bool {
	n := 0
	for _, fields := range [...][]store.Field{out.Header, out.Trailer} {
		for _, f := range fields {
			n += 1 + len(f.Values)
		}
	}
	return n <= store.MaxFields && finalStatus(out.Status)
}

// finalStatus reports whether net/http can send the status as a final one.
func finalStatus(status int) bool { return 200 <= status && status <= 999 }

// bodyAllowed reports whether a response with this status may have content
// (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func sortFields(fields []store.Field) {
	slices.SortFunc(fields, func(a, b store.Field) int { return strings.Compare(a.Name, b.Name) })
}
