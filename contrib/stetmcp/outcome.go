package stetmcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/mcpcall"
	"github.com/stet-go/stet/store"
)

// An outcome of a tool is stored so that other adapters can tell it, too. Its body is the
// structured content, as JSON, or else the text. All the rest is in a field whose name no
// HTTP header can have.
const (
	resultField = ":mcp-result" // a result, without the structured content if that is the body
	errorField  = ":mcp-error"  // an error of the protocol
)

const (
	jsonType = "application/json"
	textType = "text/plain; charset=utf-8"
)

// structured is the member of a result that is the body.
const structured = "structuredContent"

// outcomeOf returns the outcome that a tool's result is.
func outcomeOf(res *mcp.CallToolResult) (stet.Outcome, error) {
	whole, err := json.Marshal(res)
	if err != nil {
		return stet.Outcome{}, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(whole, &members); err != nil {
		return stet.Outcome{}, err
	}
	out := stet.Outcome{Failed: res.IsError, Adapter: store.AdapterGo, Status: 200, Type: textType}
	if body, ok := members[structured]; ok && !res.IsError {
		out.Type, out.Body = jsonType, body
		delete(members, structured)
	} else {
		out.Body = []byte(texts(res))
	}
	if res.IsError {
		out.Status = 500
	}
	head, err := json.Marshal(members)
	if err != nil {
		return stet.Outcome{}, err
	}
	out.Header = []store.Field{{Name: resultField, Values: []string{string(head)}}}
	return out, nil
}

// texts returns the text of a result.
func texts(res *mcp.CallToolResult) string {
	var all []string
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			all = append(all, t.Text)
		}
	}
	return strings.Join(all, "\n")
}

// errorOutcome returns the outcome that an error of the protocol is.
func errorOutcome(e *jsonrpc.Error) (stet.Outcome, error) {
	head, err := json.Marshal(e)
	if err != nil {
		return stet.Outcome{}, err
	}
	return stet.Outcome{Failed: true, Adapter: store.AdapterGo, Status: 500, Type: textType, Body: []byte(e.Message),
		Header: []store.Field{{Name: errorField, Values: []string{string(head)}}}}, nil
}

// wire returns an error as the SDK sends it.
func wire(err error) *jsonrpc.Error {
	if own, ok := err.(*jsonrpc.Error); ok { //nolint:errorlint // as the SDK does: wrapping adds text
		return own
	}
	inner, ok := errors.AsType[*jsonrpc.Error](err)
	switch {
	case !ok:
		return &jsonrpc.Error{Message: err.Error()}
	case inner.Error() == err.Error(): // stet.Retryable adds no text
		return inner
	}
	return &jsonrpc.Error{Code: inner.Code, Message: err.Error()}
}

func field(out stet.Outcome, name string) (string, bool) {
	for _, f := range out.Header {
		if f.Name == name && len(f.Values) == 1 {
			return f.Values[0], true
		}
	}
	return "", false
}

// tell returns the result that an outcome is, or the error of the protocol. before says
// that it was cancelled before it began.
func tell(out stet.Outcome, before bool, w mcpcall.Words) (*mcp.CallToolResult, error) {
	executed := stet.Executed
	switch {
	case before, out.Reason == store.ReasonNoEffect:
		executed = stet.NotExecuted
	case out.Failed:
		executed = stet.MayHaveExecuted
	}
	if head, ok := field(out, errorField); ok {
		var e jsonrpc.Error
		if err := json.Unmarshal([]byte(head), &e); err != nil {
			return refused(w.Damaged(executed)), nil
		}
		return nil, &e
	}
	if head, ok := field(out, resultField); ok {
		res, err := restore(head, out)
		if err != nil {
			return refused(w.Damaged(executed)), nil
		}
		return res, nil
	}
	return foreign(out, executed, w), nil
}

// restore undoes outcomeOf.
func restore(head string, out stet.Outcome) (*mcp.CallToolResult, error) {
	res := &mcp.CallToolResult{}
	if err := json.Unmarshal([]byte(head), res); err != nil {
		return nil, err
	}
	// The SDK reads numbers as doubles: what can be kept as it was is.
	var exact struct {
		Meta       json.RawMessage `json:"_meta"`
		Structured json.RawMessage `json:"structuredContent"`
	}
	if err := json.Unmarshal([]byte(head), &exact); err != nil {
		return nil, err
	}
	if len(exact.Meta) > 0 {
		d := json.NewDecoder(bytes.NewReader(exact.Meta))
		d.UseNumber()
		res.Meta = nil
		if err := d.Decode(&res.Meta); err != nil {
			return nil, err
		}
	}
	switch {
	case !out.Failed && out.Type == jsonType:
		res.StructuredContent = json.RawMessage(out.Body)
	case len(exact.Structured) > 0:
		res.StructuredContent = exact.Structured
	}
	return res, nil
}

var reasons = map[store.Reason]string{
	store.ReasonPanicked:  "the tool broke off",
	store.ReasonTimedOut:  "it began, and did not finish in time",
	store.ReasonCancelled: "it was cancelled",
	store.ReasonExhausted: "it was tried as often as is allowed, and no run came to an end",
	store.ReasonResolved:  "it was resolved as failed",
}

// foreign returns the result of an outcome that no tool has written.
func foreign(out stet.Outcome, x stet.Execution, w mcpcall.Words) *mcp.CallToolResult {
	text := out.Type == "" || strings.HasPrefix(out.Type, "text/")
	isJSON := out.Type == jsonType || strings.HasPrefix(out.Type, jsonType+";") || strings.HasSuffix(out.Type, "+json")
	failed := out.Failed || out.Status >= 400
	switch {
	case out.Gone && out.Failed:
		return refused(w.Failed("its result is no longer kept", x))
	case out.Gone:
		return refused(w.Refuse(&stet.Error{Kind: stet.KindExpired, Execution: x}))
	case !out.Reason.Returned():
		return refused(w.Failed(reasons[out.Reason], x))
	case isJSON && !json.Valid(out.Body), !isJSON && !text && len(out.Body) > 0:
		if failed {
			return refused(w.Failed("it failed before, by another way than this tool", x))
		}
		return refused(w.Foreign())
	case len(out.Body) == 0 && failed:
		return refused(w.Failed("it failed before, without words", x))
	case len(out.Body) == 0:
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Done. It has no result."}}}
	}
	res := &mcp.CallToolResult{IsError: failed, Content: []mcp.Content{&mcp.TextContent{Text: string(out.Body)}}}
	if isJSON && !failed && out.Body[0] == '{' {
		res.StructuredContent = json.RawMessage(out.Body)
	}
	return res
}

// refused returns the result that a refusal is.
func refused(r mcpcall.Refusal) *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: r.Text}},
		Meta: mcp.Meta{mcpcall.ProblemName: r.Problem()}}
}
