// Package sqlresult tests that a store keeps results in columns which a person can read,
// and SQL can write.
package sqlresult

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// Columns is a store that keeps results in columns.
type Columns[Tx any] struct {
	Store store.TxStore[Tx]
	// Read returns status, content_type, head and body of a record.
	Read func(t *testing.T, id store.ID) (status *int, media *string, head, body []byte)
	// Set updates a record.
	Set func(t *testing.T, id store.ID, assignments string)
	// Bytes is a literal of the type of body.
	Bytes func(text string) string
	// Settled are assignments of the times that a settled record has.
	Settled string
	// Flip and Grow change head.
	Flip, Grow string
}

// Test runs all tests.
func (c Columns[Tx]) Test(t *testing.T) {
	t.Run("SQL reads columns", c.readable)
	t.Run("a changed column is damage", c.changed)
	t.Run("an outcome written by SQL is replayed", c.written)
}

func (c Columns[Tx]) engine(t *testing.T, o stet.Options) *stet.Engine {
	o.SweepEvery = -1
	return stettest.Engine(t, c.Store, o)
}

func (c Columns[Tx]) show(t *testing.T, id store.ID) (s string, null bool) {
	status, media, head, body := c.Read(t, id)
	a, b := "NULL", "NULL"
	if status != nil {
		a = fmt.Sprint(*status)
	}
	if media != nil {
		b = *media
	}
	return fmt.Sprintf("%s %s %t %q", a, b, head != nil, body), body == nil
}

// readable: of an encrypted, missing or expired result the columns
// are empty.
func (c Columns[Tx]) readable(t *testing.T) {
	keys := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: bytes.Repeat([]byte{1}, 32)}}}
	out := stet.Outcome{Adapter: store.AdapterHTTP, Status: 201, Type: "application/json", Body: []byte(`{"order":7}`)}
	for name, d := range map[string]struct {
		o    stet.Options
		out  stet.Outcome
		want string
	}{
		"plain":     {stet.Options{}, out, `201 application/json true "{\"order\":7}"`},
		"nothing":   {stet.Options{}, stet.Outcome{}, `NULL NULL true ""`},
		"encrypted": {stet.Options{Encryption: keys}, out, `NULL NULL true ""`},
		"gone":      {stet.Options{}, stet.Outcome{Gone: true}, `NULL NULL false ""`},
	} {
		run, err := c.engine(t, d.o).Begin(t.Context(), stet.Op{Scope: "shop", Key: name})
		if err != nil {
			t.Fatalf("Begin: %v", err)
		}
		if err := run.Settle(t.Context(), d.out); err != nil {
			t.Fatalf("Settle: %v", err)
		}
		if got, null := c.show(t, run.ID()); got != d.want || d.out.Gone && !null {
			t.Errorf("%s: the columns are %v; want %s", name, got, d.want)
		}
		b, ok := store.As[store.Browser](c.Store)
		if !ok {
			t.Fatalf("%T cannot expire results", c.Store)
		}
		rec, err := c.Store.Read(t.Context(), run.ID())
		if err != nil {
			t.Fatalf("Read: %v", err)
		}
		if err := b.Expire(t.Context(), rec.Claim()); err != nil {
			t.Fatalf("Expire: %v", err)
		}
		if got, null := c.show(t, run.ID()); got != `NULL NULL false ""` || !null {
			t.Errorf("%s: after it has expired the columns are %v", name, got)
		}
	}
}

// changed: a change in any column is found, and a replay never returns something else.
func (c Columns[Tx]) changed(t *testing.T) {
	e := c.engine(t, stet.Options{})
	for _, set := range []string{
		"status = 202", "status = NULL", "content_type = 'text/plain'", "content_type = NULL", "head = " + c.Flip, "head = " + c.Grow,
		"body = " + c.Bytes(`{"order":8}`), "body = NULL",
	} {
		op := stet.Op{Scope: "shop", Key: set}
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatalf("Begin: %v", err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{Adapter: store.AdapterHTTP, Status: 201, Type: "application/json", Body: []byte(`{"order":7}`)}); err != nil {
			t.Fatalf("Settle: %v", err)
		}
		c.Set(t, run.ID(), set)
		if replay, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindDamaged {
			t.Errorf("%s: %+v, %v; want KindDamaged", set, replay, err)
		}
	}
}

// written: an outcome that SQL has written is replayed by each adapter, and nothing runs.
func (c Columns[Tx]) written(t *testing.T) {
	begun, e := c.engine(t, stet.Options{}), c.engine(t, stet.Options{}) // two processes
	writes := func(op stet.Op, set string) {
		t.Helper()
		run, err := begun.Begin(t.Context(), op)
		if err != nil {
			t.Fatalf("Begin: %v", err)
		}
		c.Set(t, run.ID(), set+", "+c.Settled)
	}
	fp := stet.NewFingerprint([]byte("do"))
	for name, d := range map[string]struct{ set, want string }{
		"a value":       {`state = 2, status = 200, content_type = 'application/json', body = ` + c.Bytes(`"charged"`), "charged, <nil>"},
		"a body alone":  {`state = 2, body = ` + c.Bytes(`"charged"`), "charged, <nil>"},
		"nothing":       {`state = 2`, ", <nil>"},
		"failed, words": {`state = 3, body = ` + c.Bytes(`no money`), ", stet: operation failed (may have executed): no money"},
	} {
		op := stet.Op{Scope: "sql", Key: name, Fingerprint: fp}
		writes(op, d.set)
		res, err := stet.Do(t.Context(), e, op, func(context.Context) (string, error) { return "it ran", nil })
		if got := fmt.Sprintf("%s, %v", res.Value, err); got != d.want || !res.Replayed {
			t.Errorf("Do, %s: %s (replayed: %v); want %s", name, got, res.Replayed, d.want)
		}
	}

	runs := 0
	m, err := stethttp.NewTx(stettest.TxEngine(e, c.Store), stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatalf("NewTx: %v", err)
	}
	op := make(chan stet.Op, 1)
	srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		runs++
		op <- stet.FromContext(r.Context()).Op()
		panic(http.ErrAbortHandler) // nothing is written
	})))
	defer srv.Close()
	post := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/charges", strings.NewReader("42"))
		if err != nil {
			t.Fatalf("NewRequest: %v", err)
		}
		req.Header.Set("Idempotency-Key", "k")
		return srv.Client().Do(req)
	}
	if res, err := post(); err == nil {
		_ = res.Body.Close()
	}
	writes(<-op, `state = 2, status = 402, content_type = 'application/json', body = `+c.Bytes(`{"declined":true}`))
	res, err := post()
	if err != nil {
		t.Fatalf("post: %v", err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusPaymentRequired || string(body) != `{"declined":true}` || res.Header.Get("Content-Type") != "application/json" || runs != 1 {
		t.Errorf("after %d runs: %d %s %q, %v; want one run and the response 402 that SQL wrote", runs, res.StatusCode, res.Header.Get("Content-Type"), body, err)
	}
}
