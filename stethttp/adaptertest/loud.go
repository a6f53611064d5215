package adaptertest

import (
	"net/http"
	"testing"
)

// Loud tests a wiring that cannot work. Each case is
// either right, as Run requires, or loud: the caller gets no success,
// Options.ErrorLog has an error, and a retry does not run the handler again. So a request
// with a key is never unprotected in silence. A wiring that is right in all cases fails:
// it is one for Run. Adapter.ServeTx may be nil; with it, nothing may be committed that the
// caller did not get.
func Loud(t *testing.T, wrong Adapter) {
	t.Helper()
	if wrong.Serve == nil {
		t.Fatal("adaptertest: Adapter.Serve is nil; it must start a server with the wrong wiring")
	}
	loud := false
	for _, c := range wrongCases {
		t.Run(c.name, func(t *testing.T) {
			loud = c.tryLoud(t, wrong) || loud
		})
		if wrong.ServeTx != nil {
			t.Run(c.name+", in a transaction", func(t *testing.T) { loud = c.tryLoudTx(t, wrong) || loud })
		}
	}
	if !loud && !t.Failed() {
		t.Error("adaptertest: nothing is wrong with this wiring, as far as Loud can tell; try it with Run")
	}
}

// wrongCase is a handler that a wrong wiring may fail.
type wrongCase struct {
	name   string
	handle func(Call) error
}

var wrongCases = []wrongCase{
	{"whole response", paid},
	{"returned error", func(Call) error { return errBank }},
	{"abort", func(c Call) error { return c.Abort(http.StatusPaymentRequired, "no money") }},
	{"status alone", func(c Call) error { return c.NoContent(http.StatusAccepted) }},
	{"panic", func(Call) error { panic(http.ErrAbortHandler) }},
}

const whyLoud = "a wiring that cannot work must fail when it is tried, and must not send outcomes that are not stored"

// tryLoud reports whether the wiring was loud, and not right.
func (c wrongCase) tryLoud(t testing.TB, wrong Adapter) (loud bool) {
	t.Helper()
	f := newFixture(t, wrong)
	f.serve(c.handle)
	first, again := f.post("{}"), f.post("{}")
	defer f.reason(whyLoud)
	if n := f.runs.Load(); n > 1 {
		f.Errorf("the handler ran %d times", n)
	}
	if first.Err == nil && again.Err == nil && !first.Replayed() && again.Replayed() && first.Status == again.Status && first.Body == again.Body {
		return false
	}
	f.failed("the first, which has no replay", first)
	f.failed("the retry, which is no replay", again)
	if c.name != "panic" {
		f.loud()
	}
	return true
}

// tryLoudTx is tryLoud for transactions.
func (c wrongCase) tryLoudTx(t testing.TB, wrong Adapter) (loud bool) {
	t.Helper()
	f := newFixture(t, wrong)
	f.serveTx(func(call Call, tx *Tx) error {
		tx.Insert("row")
		return c.handle(call)
	})
	first, again := f.post("{}"), f.post("{}")
	defer f.reason(whyLoud)
	if first.Err == nil && first.Status < 500 {
		f.replays(first, again)
		f.rows(1)
		return false
	}
	f.failed("the retry of the failure", again)
	f.rows(0)
	return true
}

// reason is printed if the case has failed.
func (f *fixture) reason(why string) {
	if f.Failed() {
		f.Logf("why this is required: %s", why)
	}
}
