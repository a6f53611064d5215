package proxy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// tools is a server of tools in any language: it answers calls as answer says, and
// counts them.
type tools struct {
	*service
	calls  atomic.Int64
	answer func(w http.ResponseWriter, r *http.Request, id json.RawMessage)
}

func serveTools(t *testing.T) *tools {
	s := &tools{}
	s.service = serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.NewDecoder(r.Body).Decode(&m); r.Method == http.MethodPost && err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if m.Method != "tools/call" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"of":%q}}`, m.ID, m.Method)
			return
		}
		s.calls.Add(1)
		s.answer(w, r, m.ID)
	})
	s.answer = s.asJSON
	return s
}

func (s *tools) result() string {
	return fmt.Sprintf(`{"content":[{"type":"text","text":"<&> ran %d"}],"structuredContent":{"z":9007199254740993,"a":1.50}}`, s.calls.Load())
}

func (s *tools) asJSON(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Mcp-Session-Id", "of the first")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, s.result())
}

func (s *tools) asEvents(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, ": hello\r\nid: 1\r\ndata:\r\n\r\nevent: message\nid: 2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progress\":1}}\n\n")
	_ = http.NewResponseController(w).Flush()
	fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":%s,\"result\":%s}\n\n", id, s.result())
}

func (s *tools) front(t *testing.T, more string) *front {
	return s.frontOn(t, memory.New(memory.Options{}), more)
}

func (s *tools) frontOn(t *testing.T, st store.Store, more string) *front {
	return startOn(t, st, fmt.Sprintf("upstream: {url: %q}\nscope: single-tenant\nroutes:\n  - path: /mcp\n    mcp: {unprotected: [look]}\n%s", s.URL, more))
}

// call posts a call of a tool.
func (f *front) call(id, key, args string, header ...string) reply {
	f.t.Helper()
	meta := `"progressToken":` + id
	if key != "" {
		meta += `,"io.github.stet-go/idempotency-key":` + key
	}
	return f.message(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"pay","arguments":%s,"_meta":{%s}}}`, id, args, meta), header...)
}

func (f *front) message(body string, header ...string) reply {
	f.t.Helper()
	return f.send("POST", "/mcp", "", body, append([]string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}, header...)...)
}

// refusal is the problem that a tool's result tells, and its words.
func (r reply) refusal(t *testing.T) (name, execution, words string) {
	t.Helper()
	var m struct {
		Result struct {
			IsError bool
			Content []struct{ Text string }
			Meta    map[string]struct{ Type, Execution string } `json:"_meta"`
		}
	}
	if err := json.Unmarshal([]byte(r.body), &m); err != nil || !m.Result.IsError || len(m.Result.Content) != 1 || r.status != 200 {
		t.Fatalf("%d %s %v", r.status, r.body, err)
	}
	p := m.Result.Meta["io.github.stet-go/problem"]
	_, name, _ = strings.Cut(p.Type, "#")
	return name, p.Execution, m.Result.Content[0].Text
}

const replayedMark = `"_meta":{"io.github.stet-go/replayed":true},`

func TestARepeatedCallOfAToolGetsTheResultUnderItsOwnID(t *testing.T) {
	for _, form := range []string{"json", "events"} {
		s := serveTools(t)
		if form == "events" {
			s.answer = s.asEvents
		}
		f := s.front(t, "")
		first := f.call("1", `"k1"`, `{"cents":100}`, "Accept-Encoding", "gzip")
		if first.status != 200 || !strings.Contains(first.body, "ran 1") || strings.Contains(first.body, "replayed") {
			t.Fatalf("%s: %d %s", form, first.status, first.body)
		}
		if form == "events" && !strings.Contains(first.body, "notifications/progress") {
			t.Errorf("the notification is missing: %s", first.body)
		}
		for _, id := range []string{"2", `"a\"b"`, "1"} {
			want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{%s%s}`, id, replayedMark, s.result()[1:])
			if again := f.call(id, `"k1"`, `{ "cents":1e2 }`); again.body != want || !again.replayed() || again.header.Get("Content-Type") != "application/json" || again.header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%s, id %s: %v %s, want %s", form, id, again.header, again.body, want)
			}
		}
		if n := s.calls.Load(); n != 1 {
			t.Errorf("%s: the tool ran %d times", form, n)
		}
		if h := s.last(); h.Get("Accept-Encoding") != "" {
			t.Errorf("the server may encode what must be read: %v", h)
		}
	}
}

func TestUnprotectedMessagesPass(t *testing.T) {
	s := serveTools(t)
	f := s.front(t, "")
	for _, m := range []string{"initialize", "tools/list", "notifications/cancelled", "tools/calls"} {
		for range 2 {
			if r := f.message(fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":%q,"params":{"name":"pay"}}`, m)); r.body != fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"result":{"of":%q}}`, m) || r.replayed() {
				t.Errorf("%s: %d %s", m, r.status, r.body)
			}
		}
	}
	for range 2 {
		f.message(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"look"}}`)
	}
	if n := s.calls.Load(); n != 2 {
		t.Errorf("look ran %d times", n)
	}
	if r := f.send("GET", "/mcp", "", ""); r.status != 200 || f.send("DELETE", "/mcp", "", "").status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestACallOfAToolWithoutAValidKeyIsRefused(t *testing.T) {
	s := serveTools(t)
	f := s.front(t, "    max_body: 10KiB\n")
	f.call("1", `"used"`, `{"cents":1}`)
	for want, r := range map[string]reply{
		"key-missing":    f.call("2", "", `{}`),
		"key-invalid":    f.call("2", `17`, `{}`),
		"key-invalid 2":  f.call("2", `""`, `{}`),
		"key-invalid 3":  f.call("2", `"`+strings.Repeat("k", 256)+`"`, `{}`),
		"key-repeated":   f.call("2", `"a"`, `{}`, "Idempotency-Key", "b"),
		"mismatch":       f.call("2", `"used"`, `{"cents":2}`),
		"key-repeated 2": f.call("2", `"a"`, `{}`, "Idempotency-Key", "a", "Idempotency-Key", "a"),
	} {
		name, x, words := r.refusal(t)
		if base, _, _ := strings.Cut(want, " "); name != base || x != "not executed" || !strings.HasPrefix(words, "Not executed") || !strings.HasPrefix(r.body, `{"jsonrpc":"2.0","id":2,`) {
			t.Errorf("%s: %s, %s: %s", want, name, x, r.body)
		}
	}
	for name, tc := range map[string]struct {
		body   string
		status int
		code   int
		header []string
	}{
		"no JSON":         {`{"a"`, 400, -32700, nil},
		"a member twice":  {`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"pay"}}`, 400, -32700, nil},
		"another case":    {`{"jsonrpc":"2.0","id":1,"Method":"tools/call","params":{"name":"pay"}}`, 400, -32600, nil},
		"a name's case":   {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"pay","name":"look"}}`, 400, -32600, nil},
		"no id":           {`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"pay"}}`, 400, -32600, nil},
		"null id":         {`{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"pay"}}`, 400, -32600, nil},
		"no params":       {`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, 400, -32602, nil},
		"a list":          {`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look"}}]`, 400, -32600, nil},
		"list arguments":  {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":[1]}}`, 400, -32602, nil},
		"escaped":         {`{"jsonrpc":"2.0","id":1,"m\u0065thod":"tools\/c\u0061ll"}`, 400, -32602, nil},
		"too large":       {`{"a":"` + strings.Repeat("x", 11<<10) + `"}`, 413, -32600, nil},
		"a coding":        {`{}`, 415, -32600, []string{"Content-Encoding", "gzip"}},
		"surrogate alone": {`{"jsonrpc":"2.0","id":"\ud800","method":"tools/call","params":{"name":"pay"}}`, 400, -32700, nil},
	} {
		r := f.message(tc.body, tc.header...)
		var m struct {
			Error struct {
				Code    int
				Message string
			}
		}
		if err := json.Unmarshal([]byte(r.body), &m); err != nil || r.status != tc.status || m.Error.Code != tc.code || !strings.HasPrefix(m.Error.Message, "Not executed") {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	if n := s.calls.Load(); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// TestEffectOfACallByItsAnswer: the call is repeated once. The second run, if there is one, succeeds.
func TestEffectOfACallByItsAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		again  string // "runs", "replays", or the name of a problem
	}{
		"an error of the tool":           {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[]}}`), "replays"},
		"an error":                       {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`), "replays"},
		"invalid params":                 {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`), "replays"},
		"the bank's method":              {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`), "replays"},
		"no such method":                 {say(404, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`), "runs"},
		"arguments that the tool parsed": {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32700,"message":"the bank's answer"}}`), "replays"},
		"the tool's request":             {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"to the bank"}}`), "replays"},
		"the call, refused":              {say(400, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no"}}`), "runs"},
		"another's, too":                 {say(200, "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n"), "outcome-unknown"},
		"go to a URL first":              {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"no"}}`), "runs"},
		"input required":                 {say(200, "application/json", `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{}}}`), "runs"},
		"input, in events":               {say(200, "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"resultType\":\"input_required\"}}\n\n"), "runs"},
		"session not found":              {say(404, "text/plain", `session not found`), "runs"},
		"bad request":                    {say(400, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}`), "runs"},
		"an error, with 400":             {say(400, "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`), "replays"},
		"500":                            {say(500, "text/plain", `oops`), "replays"},
		"accepted":                       {say(202, "", ``), "outcome-unknown"},
		"no response":                    {say(200, "text/event-stream", "id: 1\nretry: 10\ndata:\n\n"), "outcome-unknown"},
		"of another call":                {say(200, "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n"), "outcome-unknown"},
		"a question":                     {say(200, "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"elicitation/create\",\"params\":{}}\n\n"), "outcome-unknown"},
		"a page":                         {say(200, "text/html", "<p>hello"), "outcome-unknown"},
		"encoded": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = w.Write([]byte("x"))
		}, "outcome-unknown"},
		"broken off": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.Write([]byte("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "outcome-unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveTools(t)
			s.answer = func(w http.ResponseWriter, r *http.Request, id json.RawMessage) {
				if s.calls.Load() == 1 {
					tc.answer(w, r)
					return
				}
				s.asJSON(w, r, id)
			}
			f := s.front(t, "")
			first := f.call("1", `"k1"`, `{}`)
			again := f.call("1", `"k1"`, `{}`)
			got := "replays"
			switch {
			case s.calls.Load() == 2:
				got = "runs"
			case !again.replayed():
				got, _, _ = again.refusal(t)
			}
			if got != tc.again {
				t.Errorf("the first got %d %s; the second %s: %d %s", first.status, first.body, got, again.status, again.body)
			}
			if body := strings.Replace(again.body, replayedMark, "", 1); got == "replays" && body != first.body {
				t.Errorf("first %s, then %s", first.body, again.body)
			}
		})
	}
}

// TestAProblemOfTheServiceIsNoProblemOfTheProxy: the service uses stet, too.
func TestAProblemOfTheServiceIsNoProblemOfTheProxy(t *testing.T) {
	const its = `{"type":"https://github.com/stet-go/stet/blob/main/docs/problems.md#not-executed","execution":"not executed","retryable":true}`
	s := serveTools(t)
	s.answer = func(w http.ResponseWriter, r *http.Request, _ json.RawMessage) {
		say(500, "application/problem+json", its)(w, r)
	}
	f := s.front(t, "")
	for range 2 {
		if r := f.call("1", `"k1"`, `{}`); r.status != 500 || r.body != its || s.calls.Load() != 1 {
			t.Errorf("%d %s after %d calls", r.status, r.body, s.calls.Load())
		}
	}
}

func say(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if contentType != "" {
			w.Header().Set("Content-Type", contentType)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func TestACallOfAToolInFlightIsJoined(t *testing.T) {
	s := serveTools(t)
	begun, let := make(chan struct{}), make(chan struct{})
	s.answer = func(w http.ResponseWriter, r *http.Request, id json.RawMessage) {
		close(begun)
		<-let
		s.asJSON(w, r, id)
	}
	f := s.front(t, "")
	got := make(chan reply, 2)
	go func() { got <- f.call("1", `"k1"`, `{}`) }()
	<-begun
	go func() { got <- f.call("2", `"k1"`, `{}`) }()
	if name, x, words := f.call("3", `"k1"`, `{"cents":1}`).refusal(t); name != "mismatch" {
		t.Errorf("%s %s %s", name, x, words)
	}
	close(let)
	for range 2 {
		if r := <-got; !strings.Contains(r.body, "ran 1") {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
}

func TestAnUnreachableServerIsAnErrorOfTheProtocol(t *testing.T) {
	s := serveTools(t)
	f := s.front(t, "")
	s.Close()
	if name, x, words := f.call("1", `"k1"`, `{}`).refusal(t); name != "upstream-unreachable" || x != "not executed" || !strings.Contains(words, "safe to call it again") {
		t.Errorf("%s, %s, %s", name, x, words)
	}
}

// TestAPathThatIsNearlyThatOfTheServerIsProtected: a service can take it for the same.
func TestAPathThatIsNearlyThatOfTheServerIsProtected(t *testing.T) {
	s := serveTools(t)
	f := s.front(t, "")
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"io.github.stet-go/idempotency-key":"k1"}}}`
	for _, path := range []string{"/mcp/", "/MCP", "/./mcp", "/%6dcp"} {
		for range 2 {
			f.send("POST", path, "", call, "Content-Type", "application/json")
		}
	}
	if n := s.calls.Load(); n > 4 { // another path is another request, if it is no mismatch
		t.Errorf("the tool ran %d times for 4 paths", n)
	}
}

func TestParametersOfTheMediaTypeMeanNothing(t *testing.T) {
	s := serveTools(t)
	f := s.front(t, "")
	f.call("1", `"k1"`, `{}`)
	if r := f.message(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","_meta":{"io.github.stet-go/idempotency-key":"k1"}}}`, "Content-Type", "application/json; charset=utf-8"); s.calls.Load() != 1 || !r.replayed() {
		t.Errorf("%s", r.body)
	}
}

func TestAResultThatIsTooLargeIsReportedAsExecuted(t *testing.T) {
	s := serveTools(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request, id json.RawMessage) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"a\":%q}}\n\n", id, strings.Repeat("x", 20<<10))
	}
	f := s.front(t, "    max_result: 10KiB\n")
	if r := f.call("1", `"k1"`, `{}`); !strings.Contains(r.body, "xxx") {
		t.Errorf("the first got %d %.100s %v", r.status, r.body, r.err)
	}
	if name, x, words := f.call("2", `"k1"`, `{}`).refusal(t); name != "result-expired" || x != "executed" || s.calls.Load() != 1 {
		t.Errorf("%s, %s, %s", name, x, words)
	}
}

func TestOptionalKeysOfTools(t *testing.T) {
	s := serveTools(t)
	f := s.front(t, "    key: optional\n")
	for range 2 {
		if r := f.call("1", "", `{}`); r.status != 200 || r.replayed() {
			t.Errorf("%d %s", r.status, r.body)
		}
		f.call("2", `"k1"`, `{}`)
	}
	if n := s.calls.Load(); n != 3 {
		t.Errorf("the tool ran %d times", n)
	}
}

func TestResolutionOfAVerifierIsAResult(t *testing.T) {
	s := serveTools(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) { w.WriteHeader(202) }
	verifier := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(proxy.HeaderOperation, r.Header.Get(proxy.HeaderOperation))
		w.Header().Set(proxy.HeaderStatus, "200")
		w.Header().Set("Content-Type", "application/json")
		if name := r.Header.Get(proxy.HeaderName); name != "tools%2Fcall%20pay" {
			t.Errorf("it is called %q", name)
		}
		_, _ = w.Write([]byte(`{"paid":true}`))
	})
	f := s.front(t, fmt.Sprintf("    verify: {url: '%s/v', after: 0s}\n", verifier.URL))
	if name, _, _ := f.call("1", `"k1"`, `{}`).refusal(t); name != "outcome-unknown" {
		t.Errorf("the first gets %s", name)
	}
	want := `{"jsonrpc":"2.0","id":2,"result":{"_meta":{"io.github.stet-go/replayed":true},"content":[{"type":"text","text":"{\"paid\":true}"}],"structuredContent":{"paid":true}}}`
	if r := f.call("2", `"k1"`, `{}`); r.body != want {
		t.Errorf("got %s", r.body)
	}
}
