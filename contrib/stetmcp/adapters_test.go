package stetmcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/store"
)

// order is what the same operation asks for, by whatever way it comes.
func order(args json.RawMessage) store.Fingerprint {
	var in payArgs
	_ = json.Unmarshal(args, &in)
	b, _ := json.Marshal(in)
	return stet.NewFingerprint([]byte("pay"), b)
}

// meeting is a server whose calls meet operations of other adapters.
func meeting(t *testing.T) (*stet.Engine, *payments, *mcp.ClientSession) {
	e := newEngine(t, stet.Options{})
	srv := newPayments(t, e, stetmcp.Options{
		Scope:       func(context.Context, *mcp.CallToolRequest) (string, error) { return "acct_1", nil },
		Fingerprint: func(req *mcp.CallToolRequest) store.Fingerprint { return order(req.Params.Arguments) },
	})
	return e, srv, connect(t, srv.Server, nil)
}

func TestOutcomesOfAnotherAdapterAreReturned(t *testing.T) {
	e, srv, c := meeting(t)
	args := `{"cents":42}`
	for key, tc := range map[string]struct {
		out       stet.Outcome
		text      string
		isError   bool
		problem   string
		structure bool
	}{
		"a-value":   {stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: "application/json", Body: []byte(`{"n":1}`)}, `{"n":1}`, false, "", true},
		"a-list":    {stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: "application/json", Body: []byte(`[1]`)}, `[1]`, false, "", false},
		"a-page":    {stet.Outcome{Adapter: store.AdapterHTTP, Status: 201, Type: "text/plain; charset=utf-8", Body: []byte("paid")}, "paid", false, "", false},
		"a-204":     {stet.Outcome{Adapter: store.AdapterHTTP, Status: 204}, "Done. It has no result.", false, "", false},
		"a-402":     {stet.Outcome{Adapter: store.AdapterHTTP, Status: 402, Type: "application/json", Body: []byte(`{"no":"funds"}`)}, `{"no":"funds"}`, true, "", false},
		"an-image":  {stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: "image/png", Body: []byte{1}}, "", true, "result-foreign", false},
		"bad-json":  {stet.Outcome{Adapter: store.AdapterHTTP, Status: 200, Type: "application/json", Body: []byte(`{`)}, "", true, "result-foreign", false},
		"an-error":  {stet.Outcome{Failed: true, Adapter: store.AdapterGo, Status: 500, Type: "text/plain; charset=utf-8", Body: []byte("declined")}, "declined", true, "", false},
		"panicked":  {stet.Outcome{Failed: true, Reason: store.ReasonPanicked}, "", true, "operation-failed", false},
		"exhausted": {stet.Outcome{Failed: true, Reason: store.ReasonExhausted}, "", true, "operation-failed", false},
		"gone":      {stet.Outcome{Gone: true}, "", true, "result-expired", false},
	} {
		l := must[*stet.Lease](t)(e.Begin(t.Context(), stet.Op{Scope: "acct_1", Key: key, Fingerprint: order(json.RawMessage(args))}))
		if err := l.Settle(t.Context(), tc.out); err != nil {
			t.Fatal(err)
		}
		res := callTool(t, c, pay(key, args))
		if tc.problem != "" {
			if name, _ := problem(t, res); name != tc.problem {
				t.Errorf("%s: %s", key, said(t, res))
			}
			continue
		}
		if text(res) != tc.text || res.IsError != tc.isError || (res.StructuredContent != nil) != tc.structure || res.Meta[replayedName] != true {
			t.Errorf("%s: %s", key, said(t, res))
		}
	}
	if n := srv.ran.Load(); n != 0 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestAnotherAdapterReadsTheOutcomeOfATool(t *testing.T) {
	e, srv, c := meeting(t)
	callTool(t, c, pay("k1", `{"cents":42}`))
	again := func(context.Context) (receipt, error) { srv.ran.Add(1); return receipt{}, nil }
	op := stet.Op{Scope: "acct_1", Key: "k1", Fingerprint: order(json.RawMessage(`{"cents":42}`))}
	if res, err := stet.Do(t.Context(), e, op, again); err != nil || res.Value != (receipt{Number: 1, Cents: 42}) {
		t.Errorf("got %+v, %v", res, err)
	}
	srv.then = func(context.Context, *mcp.CallToolRequest, payArgs) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("declined")
	}
	callTool(t, c, pay("k2", `{"cents":42}`))
	op.Key = "k2"
	if _, err := stet.Do(t.Context(), e, op, again); stet.KindOf(err) != stet.KindFailed || errors.Unwrap(err) == nil || errors.Unwrap(err).Error() != "declined" {
		t.Errorf("got %v", err)
	}
	if n := srv.ran.Load(); n != 2 {
		t.Errorf("ran %d times", n)
	}
}

func TestEncryptedResultsAreReplayed(t *testing.T) {
	e := newEngine(t, stet.Options{Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "a", Secret: make([]byte, 32)}}}})
	srv := newPayments(t, e, single())
	c := connect(t, srv.Server, nil)
	a, b := callTool(t, c, pay("k1", `{"cents":42}`)), callTool(t, c, pay("k1", `{"cents":42}`))
	if said(t, a) != said(t, b) || b.Meta[replayedName] != true {
		t.Errorf("got %s and %s", said(t, a), said(t, b))
	}
}
