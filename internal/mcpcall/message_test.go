package mcpcall

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// TestEventsAreFoundHoweverTheyCome: whole, and byte by byte.
func TestEventsAreFoundHoweverTheyCome(t *testing.T) {
	for _, stream := range []string{
		"data: a\n\ndata: b\n\n",
		"data: a\r\n\r\ndata: b\r\n\r\n",
		"data: a\r\rdata: b\r\r",
		"\ufeffdata: a\n\n: nothing\nid: 1\nevent: x\ndata:b\nretry: 3\n\n",
		"data: a\n\n\n\ndata: b", // the stream ends early
		"data: a\n\nid: 2\n\nfoo\ndata: b\n",
	} {
		for _, step := range []int{1, 2, len(stream)} {
			var e Events
			var got []string
			note := func(data []byte) { got = append(got, string(data)) }
			for rest := stream; rest != ""; rest = rest[min(step, len(rest)):] {
				e.Write([]byte(rest[:min(step, len(rest))]), note)
			}
			e.End(note)
			if !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("%q by %d: %q", stream, step, got)
			}
		}
	}
	var got string
	var e Events
	e.Write([]byte("data: 1\ndata\ndata:  2\n\n"), func(data []byte) { got = string(data) })
	if got != "1\n\n 2" {
		t.Errorf("got %q", got)
	}
}

func TestOnlyAResponseIsOne(t *testing.T) {
	for _, message := range []string{
		``, `null`, `[]`, `{}`, `{"id":1}`, `{"result":{}}`, `{"id":1,"method":"ping","result":{}}`, `{"id":1,"result":null}`, `{"id":1,"result":3}`,
		`{"method":"notifications/progress","params":{}}`, `{"id":1,"result":{}`,
	} {
		if r, ok := ReadReply([]byte(message)); ok {
			t.Errorf("%s is %+v", message, r)
		}
	}
	for id, other := range map[string]string{`1`: `1.0`, `"a"`: `"\u0061"`, `1e1`: `10`} {
		r, ok := ReadReply([]byte(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`))
		if !ok || !r.For(jsontext.Value(other)) || r.For(jsontext.Value(`"1"`)) || r.For(jsontext.Value(`2`)) {
			t.Errorf("%s, %s: %v, %+v", id, other, ok, r)
		}
	}
}

func TestAReplayIsMarkedAndOtherwiseTheSame(t *testing.T) {
	const mark = `"io.github.stet-go/replayed":true`
	for result, want := range map[string]string{
		`{}`:                              `{"_meta":{` + mark + `}}`,
		`{ }`:                             `{"_meta":{` + mark + `}}`,
		`{"z":1.50,"a":"<é>"}`:            `{"_meta":{` + mark + `},"z":1.50,"a":"<é>"}`,
		`{"a":{"_meta":{}},"_meta":{}}`:   `{"a":{"_meta":{}},"_meta":{` + mark + `}}`,
		`{"_meta" : {"x":[1, 2]} ,"b":1}`: `{"_meta" : {` + mark + `,"x":[1, 2]} ,"b":1}`,
		`{"_meta":null,"b":1}`:            `{"_meta":null,"b":1}`,
	} {
		r, ok := ReadReply([]byte(`{"id":7,"result":` + result + `}`))
		if got := string(r.Replay(jsontext.Value(`"x"`))); !ok || got != `{"jsonrpc":"2.0","id":"x","result":`+want+`}` {
			t.Errorf("%s became %s", result, got)
		}
	}
	r, _ := ReadReply([]byte(`{"id":7,"error":{"code":-1,"message":"no","data":{"a":1e2}}}`))
	if got := string(r.Replay(jsontext.Value(`8`))); got != `{"jsonrpc":"2.0","id":8,"error":{"code":-1,"message":"no","data":{"a":1e2}}}` {
		t.Errorf("got %s", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"b":1e2},"_meta":{}}}`))
	f.Add([]byte(`[{"method":"tools/call"}]`))
	f.Fuzz(func(t *testing.T, content []byte) {
		m, err := Read(content)
		if err == nil && m.Call && (m.Tool == "" || !m.ID.IsValid() || !jsontext.Value(m.Args).IsValid()) {
			t.Errorf("%q: %+v", content, m)
		}
		if err != nil {
			if e, ok := err.(*Error); !ok || !jsontext.Value(e.Response()).IsValid() { //nolint:errorlint // it must be that
				t.Errorf("%q: %v", content, err)
			}
		}
		if err == nil && !m.Call && strings.Contains(strings.ToLower(string(content)), `"method":"tools/call"`) && strings.Count(string(content), "{") == 1 {
			t.Errorf("%q passes", content)
		}
		if r, ok := ReadReply(content); ok {
			if out := r.Replay(jsontext.Value("1")); !jsontext.Value(out).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
				t.Errorf("%q became %q", content, out)
			}
		}
	})
}

func TestMethodsThatAServerMayTakeForACallAreRefused(t *testing.T) {
	for _, method := range []string{`tools/call `, ` tools/call`, `tools/call\u0000`, `tools/call\u00a0`, `tools/call\n`, `\ufefftools/call`, `tools\u200b/call`, `Tools/Call`, `TOOLS/CALL`} {
		call := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"name":"pay"}}`
		for _, content := range []string{call, "[" + call + "]"} {
			if m, err := Read([]byte(content)); err == nil {
				t.Errorf("%s is passed as %+v", content, m)
			}
		}
	}
	for _, method := range []string{"tools/list", "tools/calls", "tools/call/x", "xtools/call", "tools call", ""} {
		if m, err := Read([]byte(`{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`)); err != nil || m.Call {
			t.Errorf("%q: %+v %v", method, m, err)
		}
	}
}
