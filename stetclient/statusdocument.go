package stetclient

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// statusDocument is the body of a status resource of stet.
type statusDocument struct {
	State   string `json:"state"`
	Outcome *struct {
		Status        int             `json:"status"`
		Result        json.RawMessage `json:"result"`
		Problem       json.RawMessage `json:"problem"`
		MediaType     string          `json:"media_type"`
		ContentCoding string          `json:"content_coding"`
		ResultBase64  []byte          `json:"result_base64"`
	} `json:"outcome"`
}

// parseStatus returns the document, or nil if body is none.
func parseStatus(body []byte) *statusDocument {
	var d statusDocument
	if json.Unmarshal(body, &d) != nil {
		return nil
	}
	for s := store.Running; s <= store.Accepted; s++ {
		if d.State == s.String() && (s.Settled() == (d.Outcome != nil)) {
			return &d
		}
	}
	return nil
}

// unsettled reports whether a response is the status document of an operation that is in
// progress.
func unsettled(body []byte) bool {
	d := parseStatus(body)
	return d != nil && d.Outcome == nil
}

// response returns the outcome in a response.
func (a *awaiting) response(res *http.Response, body []byte) (*Awaited, error) {
	if coding := res.Header.Get("Content-Encoding"); coding != "" {
		return nil, a.unread(coding)
	}
	if d := parseStatus(body); d != nil && d.Outcome != nil && res.StatusCode == http.StatusOK {
		return a.outcome(d)
	}
	if code := res.StatusCode; code >= 300 && !a.replayed(res) {
		p := parseProblem(res.Header, body)
		e := a.gaveUp(ReasonFinal, errors.New("the status resource responds with "+res.Status))
		if e.Problem = p; code == http.StatusGone && p != nil && p.says && p.Execution == stet.Executed {
			e.Reason, e.Execution = ReasonRecorded, stet.Executed
		}
		return nil, e
	}
	got := &Awaited{Status: res.StatusCode, Type: mediaType(res.Header), Body: body, Execution: stet.Executed}
	got.classify(res.Header)
	return got, nil
}

// outcome returns the outcome in a status document.
func (a *awaiting) outcome(d *statusDocument) (*Awaited, error) {
	o := d.Outcome
	got := &Awaited{Status: o.Status, Execution: stet.Executed}
	switch {
	case o.ContentCoding != "":
		return nil, a.unread(o.ContentCoding)
	case o.Status < 200 || o.Status > 599:
		return nil, a.gaveUp(ReasonFinal, errors.New("the status resource has an outcome with the status "+strconv.Itoa(o.Status)))
	case o.Problem != nil:
		got.Type, got.Body = problemType, o.Problem
	case o.Result != nil:
		got.Type, got.Body = "application/json", o.Result
	default:
		got.Type, got.Body = o.MediaType, o.ResultBase64
	}
	got.classify(http.Header{"Content-Type": {got.Type}})
	if got.Problem != nil && got.Status == http.StatusGone && got.Execution == stet.Executed {
		e := a.gaveUp(ReasonRecorded, nil)
		e.Execution, e.Problem = stet.Executed, got.Problem
		return nil, e
	}
	return got, nil
}

// unread is the error of an outcome with a content coding.
func (a *awaiting) unread(coding string) *Error {
	return a.gaveUp(ReasonFinal, errors.New("the result has the content coding "+strconv.Quote(coding)+"; read the status resource yourself"))
}

// classify reads whether the operation was executed, from the header and the problem document of
// a failure. The header of a failure counts only on a replay; a status document has none.
func (got *Awaited) classify(h http.Header) {
	if got.Status < 400 {
		return
	}
	if got.Problem = parseProblem(h, got.Body); got.Problem != nil && got.Problem.says {
		got.Execution = got.Problem.Execution
	}
	if x, said := headerExecution(h, true); said {
		got.Execution = x
	}
}
