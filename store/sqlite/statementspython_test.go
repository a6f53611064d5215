package sqlite

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// python is a process of testdata/statements.py, which knows the page and the file alone.
type python struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startPython is newPython, and the process must start.
func startPython(t testing.TB, file string) *python {
	t.Helper()
	p, err := newPython(filepath.Join(stettest.ModuleRoot(t), "docs", "sql-sqlite.md"), file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newPython(page, file string) (*python, error) {
	const interpreter, program = "/usr/bin/python3", "testdata/statements.py"
	if _, err := os.Stat(interpreter); err != nil {
		return nil, fmt.Errorf("run make services: %w", err)
	}
	if _, err := os.ReadFile(program); err != nil { // go test runs again when it has changed
		return nil, err
	}
	p := &python{cmd: exec.Command(interpreter, "-S", program, page, file)}
	p.cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	p.cmd.Stderr = os.Stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

// end ends the process, and waits for it.
func (p *python) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// said is what the process says of an order.
type said struct {
	Action, State string
	Status        int
	Fence         int64
	Headers       map[string][]string
	ContentType   string `json:"content_type"`
	Body          stettest.Hex
	Rows          int
	IDs           [][2]string
	Fingerprints  []string
	Error         string
}

// order has the process do something; an error says that it has died.
func (p *python) order(o map[string]any) (s said, err error) {
	line, err := json.Marshal(o)
	if err != nil {
		return s, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return s, err
	}
	answer, err := p.out.ReadBytes('\n')
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(answer, &s)
}

// must is order, of a process that must not die.
func (p *python) must(t testing.TB, o map[string]any) said {
	t.Helper()
	s, err := p.order(o)
	if err != nil || s.Error != "" {
		t.Fatalf("%v: %v %s", o, err, s.Error)
	}
	return s
}

func charging(key string, more ...any) map[string]any {
	o := map[string]any{"do": "charge", "scope": "shop", "key": key}
	for i := 0; i < len(more); i += 2 {
		o[more[i].(string)] = more[i+1]
	}
	return o
}

// shared is a file with charges that Go and Python share, with an engine over it.
func shared(t testing.TB) (s *Store, e *stet.Engine, te *stet.TxEngine[*sql.Tx], file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "stet.db")
	s = openStore(t, Options{}, file)
	if _, err := s.DB().Exec("CREATE TABLE charges (name TEXT)"); err != nil {
		t.Fatal(err)
	}
	e = stettest.Engine(t, s, stet.Options{SweepEvery: -1})
	return s, e, stettest.TxEngine(e, store.TxStore[*sql.Tx](s)), file
}

// opOf is the operation of charging.
func opOf(key string) stet.Op {
	return stet.Op{Scope: "shop", Key: key, Fingerprint: stet.NewFingerprint(nil)}
}

// charged is how often the key was charged.
func charged(t testing.TB, s *Store, key string) (n int) {
	t.Helper()
	if err := s.DB().QueryRow("SELECT count(*) FROM charges WHERE name = ?", key).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPythonOfThePageComputesTheVectorsOfGo(t *testing.T) {
	_, _, _, file := shared(t)
	p := startPython(t, file)
	defer p.end()
	v := stettest.ReadVectors(t)
	fingerprints := []map[string]any{}
	for _, f := range v.Fingerprints {
		parts := []string{}
		for _, part := range f.Parts {
			parts = append(parts, fmt.Sprintf("%x", part))
		}
		fingerprints = append(fingerprints, map[string]any{"version": f.Version, "parts": parts})
	}
	got := p.must(t, map[string]any{"do": "compute", "ids": v.IDs, "fingerprints": fingerprints})
	for i, want := range v.IDs {
		scope := store.DigestScope(want.Namespace, want.Scope).String()
		if got.IDs[i] != [2]string{want.ID, scope} {
			t.Errorf("the ID and scope of %.20q, %.20q, %.20q are %s; want %s, %s", want.Namespace, want.Scope, want.Key, got.IDs[i], want.ID, scope)
		}
	}
	for i, want := range v.Fingerprints {
		if got.Fingerprints[i] != want.Fingerprint {
			t.Errorf("the fingerprint of %.40q is %s; want %s", want.Parts, got.Fingerprints[i], want.Fingerprint)
		}
	}
}

// What the one has settled the other replays byte for byte; another request is a mismatch
// to both.
func TestGoAndStatementsReplayOneAnother(t *testing.T) {
	_, e, _, file := shared(t)
	p := startPython(t, file)
	defer p.end()
	m, err := stethttp.New(e, stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatal(err)
	}
	var last stet.Op
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last = stet.FromContext(r.Context()).Op()
		w.Header().Set("Location", "/p/7")
		w.Header()["Vary"] = []string{"a", "caf\xe9"}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("by\x00Go\xff"))
	}))
	post := func(key, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/p", strings.NewReader(body))
		req.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w
	}
	post("go", "x")
	finger := last.Fingerprint.String()
	of := func(key string, more ...any) map[string]any {
		return charging(key, append([]any{"scope", last.Scope, "fingerprint", finger}, more...)...)
	}
	got := p.must(t, of("go"))
	if got.Action != "replay" || got.State != "completed" || got.Status != 201 || got.ContentType != "text/plain" || string(got.Body) != "by\x00Go\xff" ||
		fmt.Sprint(got.Headers["Location"], got.Headers["Vary"]) != "[/p/7] [a café]" {
		t.Errorf("Python gets %+v", got)
	}
	if got := p.must(t, of("go", "fingerprint", strings.Repeat("00", 33))); got.Action != "mismatch" {
		t.Errorf("Python with another request gets %+v", got)
	}

	headers := map[string]any{"x-reason": "no money", "VARY": []string{"a", "caf\u00e9"}, "Date": "now", "content-length": "5"}
	if got := p.must(t, of("python", "status", 402, "body", "\x00\u00e9\u00ff", "headers", headers)); got.Action != "run" {
		t.Errorf("Python gets %+v", got)
	}
	w := post("python", "x")
	if res := w.Result(); res.StatusCode != 402 || w.Body.String() != "\x00\xe9\xff" || res.Header.Get("Idempotent-Replayed") != "true" || res.Header.Get("Content-Type") != "text/plain" ||
		res.Header.Get("X-Reason") != "no money" || !slices.Equal(res.Header["Vary"], []string{"a", "caf\xe9"}) || res.Header.Get("Date") == "now" {
		t.Errorf("Go replays %d %v %q", res.StatusCode, res.Header, w.Body)
	}
	if got := p.must(t, of("python")); got.Action != "replay" || string(got.Body) != "\x00\xe9\xff" || fmt.Sprint(got.Headers) != "map[Vary:[a café] X-Reason:[no money]]" {
		t.Errorf("Python replays %+v", got)
	}
	if w := post("python", "another"); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("Go with another request answers %d; want 422", w.Code)
	}
}

// A run of Go that has a lease is in flight, and unknown when that has run out. It is
// settled in a transaction of Python's by its claim, and by no claim that has ended.
func TestClaimOfGoIsSettledByTheStatements(t *testing.T) {
	s, _, _, file := shared(t)
	p := startPython(t, file)
	defer p.end()
	ask := func(key string, lease time.Duration) store.Record {
		req := request(key)
		req.ID, req.Fingerprint, req.Lease, req.Owner = store.Digest("", "shop", key), opOf(key).Fingerprint, lease, store.NewOwner()
		return mustClaim(t, s, req)
	}
	settle := func(key string, c store.Claim) int {
		return p.must(t, map[string]any{"do": "settle", "key": key, "claim": c.String()}).Rows
	}
	rec := ask("lease", time.Hour)
	if got := p.must(t, charging("lease")); got.Action != "in_flight" || got.State != "running" || got.Fence != rec.Fence {
		t.Errorf("beside a run under a lease Python gets %+v", got)
	}
	forged, old := rec.Claim(), rec.Claim()
	forged.Owner, old.Fence = store.NewOwner(), rec.Fence-1
	for what, c := range map[string]store.Claim{"another owner's": forged, "an older": old} {
		if n := settle("lease", c); n != 0 || charged(t, s, "lease") != 0 {
			t.Errorf("%s claim has settled %d records, with %d charges", what, n, charged(t, s, "lease"))
		}
	}
	if n := settle("lease", rec.Claim()); n != 1 || charged(t, s, "lease") != 1 {
		t.Errorf("the claim has settled %d records, with %d charges", n, charged(t, s, "lease"))
	}
	if rec := mustRead(t, s, rec.ID); rec.State != store.Completed || string(rec.Result.Body) != "by Python" || rec.Result.Status != 201 {
		t.Errorf("Go reads %+v", rec)
	}
	if n := settle("lease", rec.Claim()); n != 0 || charged(t, s, "lease") != 1 {
		t.Errorf("a second time: %d records, %d charges", n, charged(t, s, "lease"))
	}

	rec = ask("released", time.Hour)
	if err := s.Release(t.Context(), rec.Claim(), keep); err != nil {
		t.Fatal(err)
	}
	if n := settle("released", rec.Claim()); n != 0 || charged(t, s, "released") != 0 {
		t.Errorf("a claim that was released has settled %d records", n)
	}
	if got := p.must(t, charging("released", "fingerprint", strings.Repeat("00", 33))); got.Action != "mismatch" {
		t.Errorf("a released key, with another request: %+v; want a mismatch", got)
	}
	if got := p.must(t, charging("released")); got.Action != "run" {
		t.Errorf("a released key: %+v; want a run", got)
	}
	if got := mustRead(t, s, rec.ID); got.Attempt != 2 || got.Fence <= rec.Fence {
		t.Errorf("begun again: %+v; want attempt 2 and a fence above %d", got, rec.Fence)
	}

	ask("dead", time.Microsecond)
	stettest.Eventually(t, "the lease to run out", func() bool { return p.must(t, charging("dead")).Action == "unknown" })
	if n := charged(t, s, "dead"); n != 0 {
		t.Errorf("%d charges of an operation whose run has died", n)
	}
}

// A process that is killed before its COMMIT leaves nothing, and the next try runs. After
// it the outcome stands.
func TestKilledPythonLeavesNothing(t *testing.T) {
	s, _, te, file := shared(t)
	for _, point := range []string{"charged", "settled", "committed"} {
		p := startPython(t, file)
		said, err := p.order(charging(point, "die", point))
		if p.end(); err == nil || !killed(p) {
			t.Fatalf("it was to die when it had %s; it said %+v, and ended as %v", point, said, p.cmd.ProcessState)
		}
		rec := mustRead(t, s, store.Digest("", "shop", point))
		stands := point == "committed"
		if there := rec.State == store.Completed; there != stands || charged(t, s, point) != len(rec.Result.Body)/len("by Python") {
			t.Errorf("killed when it had %s: %d charges, the record is %+v", point, charged(t, s, point), rec)
		}
		res, err := stet.DoTx(t.Context(), te, opOf(point), chargeByGo(point))
		if stands { // Python's is no value of Go's, but there is an outcome
			if stet.KindOf(err) != stet.KindForeign {
				t.Errorf("killed after its COMMIT: Go gets %+v, %v; want a foreign outcome", res, err)
			}
		} else if err != nil || res.Replayed {
			t.Errorf("killed when it had %s: Go's run: %+v, %v", point, res, err)
		}
		if n := charged(t, s, point); n != 1 {
			t.Errorf("killed when it had %s: %d charges; want one", point, n)
		}
	}
}

func killed(p *python) bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// chargeByGo is a function for stet.DoTx.
func chargeByGo(key string) func(context.Context, *sql.Tx) (string, error) {
	return func(ctx context.Context, tx *sql.Tx) (string, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO charges VALUES (?)", key)
		return "by Go", err
	}
}

// A transaction without an outcome can be committed. It does not run again: it is unknown.
func TestCommitWithoutAnOutcomeBecomesUnknown(t *testing.T) {
	s, _, te, file := shared(t)
	p := startPython(t, file)
	defer p.end()
	p.must(t, map[string]any{"do": "forget", "scope": "shop", "key": "k", "lease": int64(time.Hour / time.Microsecond)})
	if got := p.must(t, charging("k")); got.Action != "in_flight" {
		t.Errorf("until its lease has run out it is %+v; want it in flight", got)
	}
	p.must(t, map[string]any{"do": "forget", "scope": "shop", "key": "dead", "lease": 0})
	if got := p.must(t, charging("dead")); got.Action != "unknown" {
		t.Errorf("when it has: %+v; want it unknown", got)
	}
	for key, want := range map[string]stet.Kind{"k": stet.KindInFlight, "dead": stet.KindUnknown} {
		if _, err := stet.DoTx(t.Context(), te, opOf(key), chargeByGo(key)); stet.KindOf(err) != want {
			t.Errorf("Go gets %v for %s; want %v", err, key, want)
		}
		if n := charged(t, s, key); n != 1 {
			t.Errorf("%s: %d charges; want the first alone", key, n)
		}
	}
}

// While a transaction of Go is open, whatever its key, the statements wait, and give up
// without effect. Settled records are found in the meantime.
func TestStatementsWaitForATransactionOfGoAndGiveUp(t *testing.T) {
	s, _, te, file := shared(t)
	p := startPython(t, file)
	defer p.end()
	p.must(t, charging("settled"))
	p.must(t, map[string]any{"do": "hurry", "ms": 1})
	_, err := stet.DoTx(t.Context(), te, opOf("k"), func(ctx context.Context, tx *sql.Tx) (string, error) {
		for _, key := range []string{"k", "another"} {
			if got, err := p.order(charging(key)); err != nil || !strings.Contains(got.Error, "locked") {
				t.Errorf("%s beside a transaction: %+v, %v; want that the file is locked", key, got, err)
			}
		}
		if got := p.must(t, map[string]any{"do": "look", "scope": "shop", "key": "settled"}); got.Action != "replay" {
			t.Errorf("look at a settled record beside a transaction: %+v; want a replay", got)
		}
		return chargeByGo("k")(ctx, tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.must(t, charging("k")); got.Action != "replay" || charged(t, s, "k") != 1 {
		t.Errorf("after it: %+v, %d charges; want a replay and one", got, charged(t, s, "k"))
	}
	if got := p.must(t, charging("another")); got.Action != "run" || charged(t, s, "another") != 1 {
		t.Errorf("the other key after it: %+v, %d charges; want a run and one", got, charged(t, s, "another"))
	}
}

// Tables that a newer program has migrated may mean something else by these columns.
func TestStatementsDoNothingInTablesOfAnotherVersion(t *testing.T) {
	s, _, _, file := shared(t)
	p := startPython(t, file)
	defer p.end()
	p.must(t, charging("before"))
	if _, err := s.DB().Exec("UPDATE stet_meta SET schema = schema + 1"); err != nil {
		t.Fatal(err)
	}
	got, err := p.order(charging("k"))
	if err != nil || !strings.Contains(got.Error, "version") || charged(t, s, "k") != 0 {
		t.Errorf("a process that was there before: %+v, %v, %d charges; want that the tables are of another version", got, err, charged(t, s, "k"))
	}
	late := startPython(t, file)
	defer late.end()
	if got, err := late.order(charging("k")); err == nil && !strings.Contains(got.Error, "version") {
		t.Errorf("a process that connects: %+v; want that it refuses the file", got)
	}
}
