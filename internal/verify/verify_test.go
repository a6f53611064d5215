package verify

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// protected is a counter behind stet.
func protected(t *testing.T, o stethttp.Options) (*Counter, http.Handler) {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	o.Scope = stethttp.SingleTenant
	counter := &Counter{}
	return counter, stethttp.Must(stethttp.New(engine, o)).Handler(counter)
}

// serve puts stet before a service.
func serve(t *testing.T, service http.Handler) http.Handler {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	return stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})).Handler(service)
}

// particular refuses a payload that it has seen before, whatever its key.
func particular(h http.Handler) http.Handler {
	var mu sync.Mutex
	seen := make(map[string]bool)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		known := seen[string(body)]
		seen[string(body)] = true
		mu.Unlock()
		if known {
			http.Error(w, "this payment was made already", http.StatusConflict)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(w, r)
	})
}

// shy tells all requests to wait of which several come at the same time.
func shy(h http.Handler) http.Handler {
	var mu sync.Mutex
	here, waiting := 0, false
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if here++; here > 1 {
			waiting = true
		}
		mu.Unlock()
		time.Sleep(2 * moment) // so that the others come
		mu.Lock()
		refuse := waiting
		if here--; here == 0 {
			waiting = false
		}
		mu.Unlock()
		if refuse {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "wait", http.StatusConflict)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func look(t *testing.T, h http.Handler, counter *Counter) map[string]Point {
	t.Helper()
	srv := httptest.NewServer(h)
	defer srv.Close()
	report, err := Run(t.Context(), Options{URL: srv.URL + "/payments", Counter: counter})
	if err != nil {
		t.Fatal(err)
	}
	points, failed := make(map[string]Point), 0
	for _, p := range report.Points {
		points[p.Name] = p
		if p.Result == Fail {
			failed++
		}
	}
	if len(points) != len(checks)+1 || failed != report.Failed {
		t.Fatalf("%d points, %d failed: %+v", len(points), report.Failed, report)
	}
	return points
}

func TestProtectedServicePassesEveryPoint(t *testing.T) {
	for _, counted := range []bool{true, false} {
		for _, strict := range []bool{true, false} {
			counter, h := protected(t, stethttp.Options{KeyPolicy: stethttp.KeyPolicy{Strict: strict}})
			if !counted {
				counter = nil
			}
			for name, p := range look(t, h, counter) {
				if p.Result != Pass {
					t.Errorf("counted %v, strict %v: %s: %s, %s", counted, strict, name, p.Result, p.Detail)
				}
			}
		}
	}
}

// flaws are ways to treat a key wrongly, with the points that must not pass.
var flaws = map[string]struct {
	wrap   func(t *testing.T) (*Counter, http.Handler)
	points []string
}{
	"no protection": {func(*testing.T) (*Counter, http.Handler) {
		c := &Counter{}
		return c, c
	}, []string{"a retry gets the first answer again", "another payload under the key is refused with 422", "retries at the same time execute once",
		"two keys are refused with 400", "malformed keys are refused with 400", "a missing key is refused with 400"}},
	"malformed keys are ignored": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if k := r.Header.Get("Idempotency-Key"); len(k) != 38 && len(k) != 36 || k[1] == ' ' {
				c.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	}, []string{"malformed keys are refused with 400"}},
	"any text as long as a UUID is a key": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if k := r.Header.Get("Idempotency-Key"); len(k) >= 36 && len(k) <= 39 {
				r.Header.Set("Idempotency-Key", stet.DeriveKey(k))
			}
			h.ServeHTTP(w, r)
		})
	}, []string{"malformed keys are refused with 400"}},
	"the payload is the key": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if k := r.Header["Idempotency-Key"]; len(k) == 1 && len(k[0]) == 38 {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				r.Header.Set("Idempotency-Key", stet.DeriveKey(string(body)))
			}
			h.ServeHTTP(w, r)
		})
	}, []string{"the same payload under a new key is a new operation"}},
	"a payload is taken once": {func(t *testing.T) (*Counter, http.Handler) {
		c := &Counter{}
		return c, serve(t, particular(c))
	}, []string{"the same payload under a new key is a new operation"}},
	"the path is not compared": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.Path, r.RequestURI = "/payments", "/payments"
			h.ServeHTTP(w, r)
		})
	}, []string{"another path under the key gets no answer of the first"}},
	"callers at the same time get in each other's way": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, shy(h)
	}, []string{"retries at the same time execute once"}},
	"only the first of two keys is read": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if k := r.Header["Idempotency-Key"]; len(k) > 1 {
				r.Header["Idempotency-Key"] = k[:1]
			}
			h.ServeHTTP(w, r)
		})
	}, []string{"two keys are refused with 400"}},
	"the payload is not compared": {func(t *testing.T) (*Counter, http.Handler) {
		same := func(string, []byte) ([]byte, error) { return []byte("same"), nil }
		return protected(t, stethttp.Options{Canonicalize: same})
	}, []string{"another payload under the key is refused with 422"}},
	"quotes make another key": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if k := r.Header.Get("Idempotency-Key"); k != "" && k[0] != '"' {
				r.Header.Set("Idempotency-Key", "bare-"+k)
			}
			h.ServeHTTP(w, r)
		})
	}, []string{"the key without quotes names the same operation"}},
	"case does not matter": {func(t *testing.T) (*Counter, http.Handler) {
		return protected(t, stethttp.Options{KeyPolicy: stethttp.KeyPolicy{FoldCase: true}})
	}, []string{"a key is compared byte by byte"}},
	"keys are optional": {func(t *testing.T) (*Counter, http.Handler) {
		return protected(t, stethttp.Options{Optional: true})
	}, []string{"a missing key is refused with 400"}},
	"refusals are plain text": {func(t *testing.T) (*Counter, http.Handler) {
		c, h := protected(t, stethttp.Options{})
		return c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, r)
			for name, v := range rec.Header() {
				w.Header()[name] = v
			}
			w.Header().Del("Cache-Control")
			w.Header().Del("Idempotent-Replayed")
			if rec.Code >= 400 {
				w.Header().Set("Content-Type", "text/plain")
			}
			w.WriteHeader(rec.Code)
			_, _ = io.Copy(w, bytes.NewReader(rec.Body.Bytes()))
		})
	}, []string{"a refusal is a problem document", "a replay says that it is one", "a replay is not stored by caches"}},
}

func TestEveryFlawIsFound(t *testing.T) {
	seen := map[string]bool{}
	for name, f := range flaws {
		counter, h := f.wrap(t)
		points := look(t, h, counter)
		for _, point := range f.points {
			seen[point] = true
			if r := points[point].Result; r != Fail && r != Warn {
				t.Errorf("a service where %s: %q is %s", name, point, r)
			}
		}
		if p := points["another payload under the key is refused with 422"]; name == "the payload is not compared" && p.Result != Fail {
			t.Errorf("%+v", p)
		}
	}
	for _, c := range checks {
		if !seen[c.name] {
			t.Errorf("no flaw is found by %q: no test has seen it fail", c.name)
		}
	}
}

func TestServiceThatCannotBeExaminedIsAnError(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	defer down.Close()
	for want, o := range map[string]Options{
		"absolute":        {URL: "/payments"},
		"http or https":   {URL: "ftp://example.com/"},
		"the same":        {URL: down.URL, Body: "x", Other: "x"},
		"succeeds":        {URL: down.URL},
		"was not reached": {URL: answering(t), Counter: &Counter{}},
	} {
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", o, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ended, Options{URL: down.URL}); err == nil {
		t.Error("a context that has ended: no error")
	}
}

func answering(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// What makes a payload new is the body, not luck: a service is looked at twice.
func TestServiceThatTakesAPayloadOnceIsExaminedTwice(t *testing.T) {
	h := serve(t, particular(&Counter{}))
	for run := range 2 {
		for name, p := range look(t, h, nil) {
			want := Pass
			if name == "the same payload under a new key is a new operation" {
				want = Warn
			}
			if p.Result != want {
				t.Errorf("run %d: %s: %s, %s", run+1, name, p.Result, p.Detail)
			}
		}
	}
}

func TestPointThatNeedsASuccessIsSkippedWithoutOne(t *testing.T) {
	srv := httptest.NewServer(serve(t, particular(&Counter{})))
	defer srv.Close()
	report, err := Run(t.Context(), Options{URL: srv.URL, Body: `{"amount":1}`})
	if err != nil || report.Failed != 0 || len(report.Points) != len(checks)+1 {
		t.Fatalf("got %+v, %v; want report.Failed == 0, len(report.Points) == len(checks)+1, no error", report, err)
	}
	for _, p := range report.Points[1:] {
		if p.Result != Skip || !strings.Contains(p.Detail, "status 409") || !strings.Contains(p.Detail, Unique) {
			t.Errorf("%s: %s, %s; no request was sent", p.Name, p.Result, p.Detail)
		}
	}
}

func TestEachOperationHasAPayloadOfItsOwn(t *testing.T) {
	for _, o := range []Options{{}, {Body: "a " + Unique, Other: "b " + Unique}, {Body: "a", Other: "b", Counter: &Counter{}}} {
		o.URL = "http://localhost"
		if err := o.fill(); err != nil {
			t.Fatal(err)
		}
		s := &service{o}
		first, one := s.stamped(o.Body)
		second, two := s.stamped(o.Body)
		if first == second || one == two || !strings.Contains(first, one) || strings.Contains(first, Unique) {
			t.Errorf("%q and %q", first, second)
		}
	}
}

// Others are needed for "the others got one outcome".
func TestConcurrentRequestsWith409HaveNoOutcome(t *testing.T) {
	c, h := protected(t, stethttp.Options{})
	if p := look(t, shy(h), c)["retries at the same time execute once"]; p.Result != Warn || strings.Contains(p.Detail, "others") {
		t.Errorf("all requests got a 409: %+v", p)
	}
	never := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "wait", http.StatusConflict) })
	srv := httptest.NewServer(never)
	defer srv.Close()
	o := Options{URL: srv.URL + "/payments"}
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	o.Client = srv.Client()
	if r, detail := together(t.Context(), &service{o}, operation{}); r != Fail || !strings.Contains(detail, "none has succeeded") {
		t.Errorf("none has succeeded: %s, %s", r, detail)
	}
}

func TestReportHasTheReasonOfItsEnd(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	defer down.Close()
	report, err := Run(t.Context(), Options{URL: down.URL})
	if err == nil || report.Stopped != err.Error() || len(report.Points) != 1 || report.Failed != 1 {
		t.Errorf("got %+v, %v; want err != nil, report.Stopped == err.Error(), len(report.Points) == 1, report.Failed == 1", report, err)
	}
}
