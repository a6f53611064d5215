package postgres

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// parts are the columns of a result as SQL has them; nil for NULL.
type parts struct {
	status     *int
	media      *string
	head, body []byte
}

func partsOf(t *testing.T, s *Store, id store.ID) (p parts) {
	t.Helper()
	err := s.Pool().QueryRow(t.Context(), "SELECT status, content_type, head, body FROM stet.records WHERE id = $1::bytea", id[:]).Scan(&p.status, &p.media, &p.head, &p.body)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p parts) String() string {
	status, media := "NULL", "NULL"
	if p.status != nil {
		status = fmt.Sprint(*p.status)
	}
	if p.media != nil {
		media = *p.media
	}
	return fmt.Sprintf("%s %s %t %q", status, media, p.head != nil, p.body)
}

func engineOf(t *testing.T, s *Store, o stet.Options) *stet.Engine {
	t.Helper()
	o.SweepEvery = -1
	e, err := stet.New(s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// Status, media type and body are columns; of what is encrypted, of no result and of one
// that has expired they are empty.
func TestResultIsInColumnsThatSQLReads(t *testing.T) {
	s := open(t, nil, Options{})
	keys := stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: bytes.Repeat([]byte{1}, 32)}}}
	out := stet.Outcome{Face: store.FaceHTTP, Status: 201, Type: "application/json", Body: []byte(`{"order":7}`)}
	for name, c := range map[string]struct {
		o    stet.Options
		out  stet.Outcome
		want string
	}{
		"plain":     {stet.Options{}, out, `201 application/json true "{\"order\":7}"`},
		"nothing":   {stet.Options{}, stet.Outcome{}, `NULL NULL true ""`},
		"encrypted": {stet.Options{Encryption: keys}, out, `NULL NULL true ""`},
		"gone":      {stet.Options{}, stet.Outcome{Gone: true}, `NULL NULL false ""`},
	} {
		run, err := engineOf(t, s, c.o).Begin(t.Context(), stet.Op{Scope: "shop", Key: name})
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Settle(t.Context(), c.out); err != nil {
			t.Fatal(err)
		}
		if got := partsOf(t, s, run.ID()); got.String() != c.want || c.out.Gone && got.body != nil {
			t.Errorf("%s: the columns are %v; want %s", name, got, c.want)
		}
		rec, err := s.Read(t.Context(), run.ID())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Expire(t.Context(), rec.Claim()); err != nil {
			t.Fatal(err)
		}
		if got := partsOf(t, s, run.ID()); got.String() != `NULL NULL false ""` || got.body != nil {
			t.Errorf("%s: after it has expired the columns are %v", name, got)
		}
	}
}

// A change in any column is found, and what is replayed is never something else.
func TestChangedColumnIsDamage(t *testing.T) {
	s := open(t, nil, Options{})
	e := engineOf(t, s, stet.Options{})
	for _, set := range []string{
		"status = 202", "status = NULL", "content_type = 'text/plain'", "content_type = NULL", "head = set_byte(head, 1, get_byte(head, 1) # 1)",
		"head = head || '\\x00'", "body = '{\"order\":8}'", "body = NULL",
	} {
		op := stet.Op{Scope: "shop", Key: set}
		run, err := e.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Settle(t.Context(), stet.Outcome{Face: store.FaceHTTP, Status: 201, Type: "application/json", Body: []byte(`{"order":7}`)}); err != nil {
			t.Fatal(err)
		}
		id := run.ID()
		execSQL(t, s.Pool(), "UPDATE stet.records SET "+set+" WHERE id = $1::bytea", id[:])
		if replay, err := e.Begin(t.Context(), op); stet.KindOf(err) != stet.KindDamaged {
			t.Errorf("%s: %+v, %v; want ErrDamaged", set, replay, err)
		}
	}
}

// An outcome that SQL has written is replayed by each face, and nothing runs.
func TestOutcomeWrittenBySQLIsReplayed(t *testing.T) {
	s := open(t, nil, Options{})
	begun, e := engineOf(t, s, stet.Options{}), engineOf(t, s, stet.Options{}) // two processes
	writes := func(op stet.Op, set string) {
		t.Helper()
		run, err := begun.Begin(t.Context(), op)
		if err != nil {
			t.Fatal(err)
		}
		id := run.ID()
		execSQL(t, s.Pool(), `UPDATE stet.records SET `+set+`, settled_at = now(), expires_at = now() + interval '1 day',
			forget_at = now() + interval '30 days', due_at = now() + interval '1 day', lease_until = NULL
			WHERE id = $1::bytea AND fence = $2 AND state = 1`, id[:], run.Fence())
	}
	fp := stet.NewFingerprint([]byte("do"))
	for name, c := range map[string]struct{ set, want string }{
		"a value":       {`state = 2, status = 200, content_type = 'application/json', body = '"charged"'`, "charged, <nil>"},
		"a body alone":  {`state = 2, body = '"charged"'`, "charged, <nil>"},
		"nothing":       {`state = 2`, ", <nil>"},
		"failed, words": {`state = 3, body = 'no money'`, ", stet: operation failed (executed): no money"},
	} {
		op := stet.Op{Scope: "shop", Key: name, Fingerprint: fp}
		writes(op, c.set)
		res, err := stet.Do(t.Context(), e, op, func(context.Context) (string, error) { return "it ran", nil })
		if got := fmt.Sprintf("%s, %v", res.Value, err); got != c.want || !res.Replayed {
			t.Errorf("Do, %s: %s (replayed: %v); want %s", name, got, res.Replayed, c.want)
		}
	}

	runs := 0
	m, err := stethttp.NewTx(txOf(e, store.TxStore[pgx.Tx](s)), stethttp.Options{Scope: stethttp.SingleTenant})
	if err != nil {
		t.Fatal(err)
	}
	op := make(chan stet.Op, 1)
	srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		op <- stet.FromContext(r.Context()).Op()
		panic(http.ErrAbortHandler) // nothing is written
	})))
	defer srv.Close()
	post := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/charges", strings.NewReader("42"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		return srv.Client().Do(req)
	}
	if res, err := post(); err == nil {
		_ = res.Body.Close()
	}
	writes(<-op, `state = 2, status = 402, content_type = 'application/json', body = '{"declined":true}'`)
	res, err := post()
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 402 || string(body) != `{"declined":true}` || res.Header.Get("Content-Type") != "application/json" || runs != 1 {
		t.Errorf("after %d runs: %d %s %q, %v", runs, res.StatusCode, res.Header.Get("Content-Type"), body, err)
	}
}
