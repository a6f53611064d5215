package stethttp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/coding"
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

// Outcome returns the outcome that a response is stored as, for a stet.Policy.Verify
// that knows how an expired run ended. status is 200 to 999; one of 500 and
// above makes the outcome a failure. Of header, the fields that are never
// stored are left out, and so are Set-Cookie and Content-Length. header and
// body are not copied.
func Outcome(status int, header http.Header, body []byte) (stet.Outcome, error) {
	filter := newHeaderFilter(Options{Advanced: Advanced{ReplayedHeader: DefaultReplayedHeader, DropHeaders: []string{"Trailer"}}})
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

// StoredResponse returns the HTTP response of an outcome. Trailers have http.TrailerPrefix.
// The error is an *stet.Error: of kind stet.KindExpired for a discarded result, of kind
// stet.KindDamaged for a stored response that HTTP cannot send.
func StoredResponse(out stet.Outcome) (status int, header http.Header, body []byte, err error) {
	if out.Gone {
		return 0, nil, nil, &stet.Error{Kind: stet.KindExpired, Execution: stet.MayHaveExecuted}
	}
	if err := unsendable(out); err != nil {
		return 0, nil, nil, err
	}
	out = (&Middleware{o: Options{Advanced: Advanced{ProblemBase: DefaultProblemBase}}}).asHTTP(out, false)
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
	out := stet.Outcome{Adapter: store.AdapterHTTP, Status: status, Header: header, Body: body}
	i, ok := slices.BinarySearchFunc(header, "Content-Type", func(f store.Field, name string) int { return strings.Compare(f.Name, name) })
	if ok && len(header[i].Values) == 1 && header[i].Values[0] != "" {
		out.Type = header[i].Values[0]
		out.Header = slices.Delete(header, i, i+1)
	}
	return out
}

// exact reports whether an outcome is a response, to be sent unchanged.
func exact(out stet.Outcome) bool {
	return out.Adapter == store.AdapterHTTP || out.Adapter == store.AdapterSQL && out.Status != 0
}

// unsendable is the error, of kind KindDamaged, of an outcome that is a response by its own
// account and cannot be sent as one: this package has not stored it unchanged. nil if
// it can be sent.
func unsendable(out stet.Outcome) error {
	var cause error
	length, sized := field(out, "Content-Length")
	switch {
	case out.Gone || !exact(out):
	case !finalStatus(out.Status):
		cause = fmt.Errorf("the stored response has the status %d, which is not 200 to 999", out.Status)
	case sized && len(out.Body) > 0 && !slices.Equal(length, []string{strconv.Itoa(len(out.Body))}):
		cause = fmt.Errorf("the stored response has %d bytes, and Content-Length %q", len(out.Body), length)
	}
	if cause == nil {
		return nil
	}
	return &stet.Error{Kind: stet.KindDamaged, Execution: executionOf(out), Cause: cause}
}

// asHTTP returns the response of an outcome of any adapter, which net/http can send. The outcome
// must not be Gone. never is true if the operation was never begun.
func (m *Middleware) asHTTP(out stet.Outcome, never bool) stet.Outcome {
	err := unsendable(out)
	switch {
	case err != nil:
		return m.asResponse(resultUnreadable.as(stet.ExecutionOf(err)), "")
	case exact(out):
		if !bodyAllowed(out.Status) {
			out.Body = nil
		}
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
		if problem.execution = executionOf(out); problem.execution == stet.NotExecuted {
			problem.detail = "The operation failed. It had no effect, and does not run again."
		}
		if out.Adapter == store.AdapterGRPC && refusal(out.Status) { // what the caller did wrong is for the caller to read
			problem.status, detail = out.Status, coding.StatusOf(out.Trailer).Message
		}
		return m.asResponse(&problem, detail)
	}
	return m.translated(out)
}

// refusal reports whether a status refuses the content of a request.
func refusal(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, 499:
		return false
	}
	return 400 <= status && status <= 499
}

// translated is the response for a completed outcome of another adapter, with the fields that
// this package would store.
func (m *Middleware) translated(out stet.Outcome) stet.Outcome {
	status := out.Status
	switch {
	case len(out.Body) == 0 && (!finalStatus(status) || status == http.StatusOK):
		status = http.StatusNoContent
	case !finalStatus(status), len(out.Body) > 0 && !bodyAllowed(status):
		status = http.StatusOK
	}
	if out.Adapter == store.AdapterGRPC { // metadata of gRPC, which no HTTP handler has set
		out.Header, out.Trailer = nil, nil
	}
	res := response(status, m.filter.fields(headerOf(out.Header), nil), out.Body)
	res.Trailer, res.Trace = m.filter.trailers(headerOf(out.Trailer), nil), out.Trace
	switch {
	case len(out.Body) == 0:
		res.Type = ""
	case out.Type != "" && sendable(out.Type):
		res.Type = out.Type
	case res.Type == "" && json.Valid(out.Body):
		res.Type = jsonType
	case res.Type == "":
		res.Type = binaryType
	}
	return res
}

// headerOf converts fields of another adapter, without the fields that HTTP cannot send.
func headerOf(fields []store.Field) http.Header {
	h := make(http.Header, len(fields))
	for _, f := range fields {
		if !isToken(f.Name) {
			continue
		}
		for _, v := range f.Values {
			if sendable(v) {
				h.Add(f.Name, v)
			}
		}
	}
	return h
}

// sendable reports whether a header field can have this value (RFC 9110, section 5.5).
func sendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
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
