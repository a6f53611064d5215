package matrix

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/codec/protobuf"
	"github.com/stet-go/stet/internal/rpc"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

const readingHead = `# How each adapter replays a stored outcome. One line a cell; see the package's
# comment.
#
# who wrote the outcome, what became of it since, the record, who reads it, what the
# reader says. No reader runs anything: a line that ends with RAN is a second
# execution. With the key, encrypted outcomes read as others, and have no lines.
# A webhook has another fingerprint than a request: each takes the other's for a
# mismatch, and only that of a webhook is read by webhooks here. An operator is shown
# the result; the status is the resource of stethttp.Async.
#
`

// writer is where an outcome comes from.
type writer struct {
	name   string
	brief  bool // only as it was written
	clear  bool // by SQL: it is never encrypted
	status int
	media  string
	handle func(context.Context, *world) (string, error)
	write  func(*world)
}

func byHTTP(w *world)    { w.http(false) }
func byDo(w *world)      { w.do(false) }
func byMessage(w *world) { w.message(false, 1) }
func byHook(w *world)    { w.fp = stet.NewFingerprint([]byte(body)); w.hook(false) }
func byWorker(w *world) {
	worker := w.worker("plain")
	w.async("POST")
	w.work(worker)
}

const jsonText = "application/json"

var writers = []writer{
	{name: "http 200 json", status: 200, media: jsonText, handle: returns(`"one"`, nil), write: byHTTP},
	{name: "http 200 text", brief: true, status: 200, media: "text/plain", handle: returns("one", nil), write: byHTTP},
	{name: "http 204", brief: true, status: 204, handle: returns("", nil), write: byHTTP},
	{name: "http 402", brief: true, status: 402, media: jsonText, handle: returns(`"declined"`, nil), write: byHTTP},
	{name: "http 500", status: 500, handle: returns("", errBoom), write: byHTTP},
	{name: "http panic", brief: true, handle: returns("", nil, panics), write: byHTTP},
	{name: "do value", handle: returns("one", nil), write: byDo},
	{name: "do error", handle: returns("", errBoom), write: byDo},
	{name: "do panic", brief: true, handle: returns("", nil, panics), write: byDo},
	{name: "message json", handle: returns(`"one"`, nil), write: byMessage},
	{name: "message text", brief: true, handle: returns("one", nil), write: byMessage},
	{name: "message nothing", brief: true, handle: returns("", nil), write: byMessage},
	{name: "message failed", handle: returns("", errBoom), write: byMessage},
	{name: "message failed without text", brief: true, handle: returns("", errors.New("")), write: byMessage},
	{name: "worker value", handle: returns("one", nil), write: byWorker},
	{name: "worker failed", handle: permanent(errBoom), write: byWorker},
	{name: "webhook handled", handle: returns("", nil), write: byHook},
	{name: "webhook failed", handle: returns("", errBoom), write: byHook},
	{name: "cancelled before it ran", write: func(w *world) { w.async("POST"); cancel(w) }},
	{name: "cancelled while it ran", brief: true, handle: func(ctx context.Context, w *world) (string, error) {
		cancel(w)
		return timedOut(ctx, w)
	}, write: byWorker},
	{name: "stet: Policy.Stale", write: func(w *world) {
		dies(w)
		stale := newWorld(w.t, w.store, stet.Options{Policy: stet.Policy{Stale: stet.ItHappened(stet.Outcome{Failed: true})}, Encryption: w.encryption})
		stale.do(false)
	}},
	{name: "operator: completed, no response", brief: true, write: resolves(stet.Outcome{Gone: true})},
	{name: "operator: failed, no response", brief: true, write: resolves(stet.Outcome{Failed: true, Gone: true})},
	{name: "do protobuf", write: settles(stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: rpc.Type("google.protobuf.StringValue"), Body: oneMessage})},
	{name: "do another message", brief: true, write: settles(stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: rpc.Type("google.protobuf.Empty"), Body: oneMessage})},
	{name: "do gob", brief: true, write: settles(stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: "application/x-gob", Body: []byte("gob")})},
	{name: "grpc reply", write: settles(rpc.End{Name: "google.protobuf.StringValue", Message: oneMessage, Header: rpc.Metadata{"x-request-id": {"7"}}}.Outcome())},
	{name: "grpc empty reply", brief: true, write: settles(rpc.End{Name: "google.protobuf.Empty"}.Outcome())},
	{name: "grpc not found", write: settles(rpc.End{Status: &status.Status{Code: 5, Message: "no such order"}}.Outcome())},
	{name: "grpc unavailable", brief: true, write: settles(rpc.End{Status: &status.Status{Code: 14, Message: "try later"}}.Outcome())},
	{name: "sql 200 json", clear: true, write: bySQL(store.Completed, store.Result{Status: 200, Type: jsonText, Body: []byte(`"one"`)})},
	{name: "sql 200 text", brief: true, clear: true, write: bySQL(store.Completed, store.Result{Status: 200, Type: "text/plain", Body: []byte("one")})},
	{name: "sql nothing", brief: true, clear: true, write: bySQL(store.Completed, store.Result{})},
	{name: "sql 402", brief: true, clear: true, write: bySQL(store.Completed, store.Result{Status: 402, Type: jsonText, Body: []byte(`"declined"`)})},
	{name: "sql failed", brief: true, clear: true, write: bySQL(store.Failed, store.Result{Status: 500, Type: "text/plain", Body: []byte("boom")})},
	{name: "sql failed, no response", brief: true, clear: true, write: bySQL(store.Failed, store.Result{})},
	{name: "verifier: completed, no result", brief: true, write: resolves(stet.Outcome{})},
	{name: "verifier: completed, JSON", brief: true, write: resolves(stet.Outcome{Adapter: store.AdapterGo, Status: 200, Type: "application/json", Body: []byte(`"one"`)})},
}

func cancel(w *world) {
	if _, err := w.engine.Cancel(context.Background(), scope, w.engine.ID(scope, key)); err != nil {
		w.t.Error(err)
	}
}

// dies leaves a run behind whose lease has run out.
func dies(w *world) {
	run := must(w.engine.Begin(context.Background(), w.op()))
	if err := run.MarkUnknown(context.Background()); err != nil {
		w.t.Error(err)
	}
}

func resolves(out stet.Outcome) func(*world) {
	return func(w *world) {
		dies(w)
		if err := w.engine.Resolve(context.Background(), w.record(), "", stet.ItHappened(out)); err != nil {
			w.t.Error(err)
		}
	}
}

// oneMessage is the google.protobuf.StringValue of "one".
var oneMessage = must(proto.Marshal(wrapperspb.String("one")))

// settles writes an outcome as an adapter does that is not in this module.
func settles(out stet.Outcome) func(*world) {
	return func(w *world) {
		run := must(w.engine.Begin(context.Background(), w.op()))
		if err := run.Settle(context.Background(), out); err != nil {
			w.t.Error(err)
		}
	}
}

// bySQL writes a result as a service does by SQL: as columns, without a head.
func bySQL(state store.State, r store.Result) func(*world) {
	return func(w *world) {
		req := stettest.Request("")
		req.ID, req.Scope, req.Fingerprint = w.engine.ID(scope, key), store.DigestScope("", scope), w.fp
		rec := must(w.store.Claim(context.Background(), req))
		p, _ := w.engine.Policy("")
		if err := w.store.Settle(context.Background(), rec.Claim(), store.Settlement{State: state, Result: r}, p.Retention); err != nil {
			w.t.Error(err)
		}
	}
}

// doMessage asks Do for a google.protobuf.StringValue, with a codec for it.
func (w *world) doMessage() string {
	e := must(stet.New(w.store, stet.Options{Encryption: w.encryption, Policy: stet.Policy{Values: protobuf.Values()}}))
	defer e.Close()
	res, err := stet.Do(context.Background(), e, w.op(), func(context.Context) (*wrapperspb.StringValue, error) {
		w.runs++
		return nil, nil
	})
	switch {
	case err != nil:
		return strings.TrimSpace(said(err))
	case res.Value == nil:
		return "nil"
	}
	return fmt.Sprintf("%q", res.Value.GetValue())
}

// rpc has a caller of an RPC ask, whose method responds with a google.protobuf.StringValue.
func (w *world) rpc() string {
	run, err := w.engine.Begin(context.Background(), w.op())
	if err != nil {
		return said(err)
	}
	if !run.Replayed() {
		w.runs++
		return "it runs"
	}
	e := rpc.Read(run.Outcome(), run.Attempt() == 0, func() proto.Message { return new(wrapperspb.StringValue) })
	if e.OK() {
		m := new(wrapperspb.StringValue)
		if err := proto.Unmarshal(e.Message, m); err != nil {
			return "unreadable: " + err.Error()
		}
		return fmt.Sprintf("OK %q", m.GetValue())
	}
	text := code.Code(e.Status.GetCode()).String()
	for _, d := range e.Status.GetDetails() {
		if info := new(errdetails.ErrorInfo); d.UnmarshalTo(info) == nil {
			return fmt.Sprintf("%s %s (%s)", text, info.Reason, info.Metadata["execution"])
		}
	}
	return fmt.Sprintf("%s: %s", text, e.Status.GetMessage())
}

// readers by name.
var readers = []struct {
	name string
	read func(*world) string
}{
	{"http", func(w *world) string { return w.http(false) }},
	{"http tx", func(w *world) string { return w.http(true) }},
	{"http async", func(w *world) string { return short(w.async("POST")) }},
	{"do", func(w *world) string { return w.do(false) }},
	{"do protobuf", func(w *world) string { return w.doMessage() }},
	{"grpc", func(w *world) string { return w.rpc() }},
	{"message", func(w *world) string { return w.message(false, 1) }},
	{"webhook", func(w *world) string { return w.hook(false) }},
	{"worker", func(w *world) string { return w.work(w.worker("plain")) }},
	{"status", func(w *world) string { return summary(w.async("GET")) }},
	{"operator", func(w *world) string { return summary(w.operator()) }},
}

// summary is what the status resource, or an operator, is shown.
func summary(answer string) string {
	head, document, _ := strings.Cut(answer, " ")
	var d struct {
		State    string
		Gone     bool
		Result   []byte
		Response *struct{ Status int }
		Outcome  *struct {
			Status  int
			Result  json.RawMessage
			Base64  []byte `json:"result_base64"`
			Problem *struct{ Type, Execution string }
		}
	}
	if head != "200" || json.Unmarshal([]byte(document), &d) != nil {
		return answer
	}
	text := "200, " + d.State
	switch {
	case d.Outcome != nil && d.Outcome.Problem != nil:
		name := d.Outcome.Problem.Type[strings.LastIndex(d.Outcome.Problem.Type, "#")+1:]
		return fmt.Sprintf("%s, %d %s (%s)", text, d.Outcome.Status, name, d.Outcome.Problem.Execution)
	case d.Outcome != nil:
		return strings.TrimSpace(fmt.Sprintf("%s, %d %s", text, d.Outcome.Status, append(d.Outcome.Result, d.Outcome.Base64...)))
	case d.Gone:
		return text + ", gone"
	case d.Response != nil:
		return fmt.Sprintf("%s, response %d", text, d.Response.Status)
	case len(d.Result) > 0:
		return fmt.Sprintf("%s, result %s", text, d.Result)
	}
	return text
}

// conditions are what becomes of a record after it was written.
var conditions = []struct {
	name   string
	happen func(w *world)
	keys   bool // written with encryption
	key    bool // read with the key
}{
	{name: "plain"},
	{name: "encrypted", keys: true, key: true},
	{name: "key missing", keys: true},
	{name: "gone", happen: func(w *world) {
		if err := w.store.Expire(context.Background(), w.record().Claim()); err != nil {
			w.t.Error(err)
		}
	}},
	{name: "damaged", happen: func(w *world) {
		w.store.hurt = func(rec store.Record) store.Record {
			if head := rec.Result.Head; len(head) > 0 {
				rec.Result.Head = append([]byte{head[0] ^ 0x40}, head[1:]...)
			}
			return rec
		}
	}},
}

// TestEveryReading compares what each adapter makes of each stored outcome with
// testdata/reading.txt.
func TestEveryReading(t *testing.T) {
	var rows [][]string
	for _, from := range writers {
		plain := map[string]string{}
		for _, c := range conditions {
			if from.brief && c.name != "plain" && c.name != "encrypted" || from.clear && c.keys {
				continue
			}
			for _, reader := range readers {
				if reader.name == "webhook" && !strings.HasPrefix(from.name, "webhook") {
					continue
				}
				var state, answer string
				synctest.Test(t, func(t *testing.T) {
					w := written(t, from, c.keys)
					state, answer = w.reads(c.happen, c.key, reader.read)
				})
				if c.name == "plain" {
					plain[reader.name] = answer
				}
				if c.name == "encrypted" {
					if answer != plain[reader.name] {
						t.Errorf("%s, encrypted: %s reads %q, and as plain text %q", from.name, reader.name, answer, plain[reader.name])
					}
					continue
				}
				rows = append(rows, []string{from.name, c.name, state, reader.name, answer})
			}
		}
	}
	facesTable(t, rows)
	golden(t, "reading.txt", readingHead, []int{32, 11, 15, 11, 0}, rows)
}

var encryption = stet.Encryption{Keys: []stet.EncryptionKey{{Name: "first", Secret: []byte(strings.Repeat("s", 32))}}}

// written returns a world in which an outcome stands.
func written(t *testing.T, from writer, keys bool) *world {
	o := stet.Options{}
	if keys {
		o.Encryption = encryption
	}
	w := newWorld(t, nil, o)
	w.encryption = o.Encryption
	w.status, w.mediaType = max(from.status, http.StatusOK), from.media
	w.handle = func(ctx context.Context) (string, error) { return from.handle(ctx, w) }
	from.write(w)
	if rec := w.record(); !rec.State.Settled() {
		t.Errorf("%s: nothing stands: %v", from.name, rec.State)
	}
	return w
}

// reads returns what a reader of another engine says, and the record then.
func (w *world) reads(happen func(*world), key bool, read func(*world) string) (state, answer string) {
	if happen != nil {
		happen(w)
	}
	o := stet.Options{}
	if key {
		o.Encryption = encryption
	}
	other := newWorld(w.t, w.store, o)
	other.encryption = o.Encryption
	other.fp = w.fp
	other.handle = func(context.Context) (string, error) { return "two", nil }
	answer = read(other)
	if other.runs > 0 {
		answer += fmt.Sprintf(" RAN %d", other.runs)
	}
	time.Sleep(time.Minute) // for what continues in the background
	state = w.record().State.String()
	if w.record().Gone {
		state += ", gone"
	}
	return state, answer
}
