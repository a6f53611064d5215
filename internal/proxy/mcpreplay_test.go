package proxy_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

func TestReplayedProblemOfAToolIsMarkedAsAReplay(t *testing.T) {
	s := serveTools(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request, _ json.RawMessage) { w.WriteHeader(202) } // the outcome is unknown
	f := s.front(t, "")
	if r := f.call("1", `"k1"`, `{}`); strings.Contains(r.body, "replay") {
		t.Errorf("the first: %s", r.body)
	}
	id := store.Digest("", "single-tenant", "k1")
	rec := stettest.Read(t, f.store, id)
	engine := stettest.Engine(t, f.store, stet.Options{})
	if err := engine.Resolve(t.Context(), rec, "", stet.ItHappened(stet.Outcome{Failed: true, Reason: store.ReasonResolved})); err != nil {
		t.Fatal(err)
	}
	r := f.call("2", `"k1"`, `{}`)
	var m struct {
		Result struct {
			IsError bool
			Content []struct{ Text string }
			Meta    map[string]json.RawMessage `json:"_meta"`
		}
	}
	if err := json.Unmarshal([]byte(r.body), &m); err != nil || len(m.Result.Content) != 1 || !m.Result.IsError {
		t.Fatalf("%s %v", r.body, err)
	}
	if text := m.Result.Content[0].Text; !strings.HasSuffix(text, "This is a replay of the stored answer: this call has run nothing.") ||
		string(m.Result.Meta["io.github.stet-go/replayed"]) != "true" || !strings.Contains(string(m.Result.Meta["io.github.stet-go/problem"]), "#operation-failed") {
		t.Error(r.body)
	}
}
