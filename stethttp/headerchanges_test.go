package stethttp_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stet-go/stet/stethttp"
)

// marking is a writer that changes values of headers where they are, as those do that
// rewrite cookies or links.
type marking struct{ http.ResponseWriter }

func (w marking) WriteHeader(status int) {
	links := w.Header()["Link"]
	for i := range links {
		links[i] += "!"
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w marking) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestOuterWritersDoNotChangeTheStoredResponse(t *testing.T) {
	flush := func(w http.ResponseWriter) { w.(http.Flusher).Flush() }
	for name, h := range map[string]http.HandlerFunc{
		"at the end": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) },
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			flush(w)
		},
		"after hints": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
			flush(w)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, setup{options: stethttp.Options{Advanced: stethttp.Advanced{AllowEmpty: true}}, around: func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(marking{w}, r) })
			}, handler: func(w http.ResponseWriter, r *http.Request) {
				w.Header()["Link"] = []string{"a", "b"}
				h(w, r)
			}})
			for i := range 3 {
				r := s.post("k", "{}")
				wantReply(t, r, 200, "", i > 0)
				if got := fmt.Sprint(r.header["Link"]); got != "[a! b!]" {
					t.Errorf("response %d has %s; want each value marked once", i, got)
				}
			}
			s.wantRuns(1)
		})
	}
}

// As in net/http, later changes of the header have no effect.
func TestValuesMayNotChangeOnceWritten(t *testing.T) {
	for _, n := range []int{1, 8, 9, 30} {
		for _, flushed := range []bool{false, true} {
			t.Run(fmt.Sprint(n, flushed), func(t *testing.T) {
				s := start(t, setup{handler: func(w http.ResponseWriter, r *http.Request) {
					values := make([]string, n)
					for i := range values {
						values[i] = fmt.Sprint(i)
						w.Header()[fmt.Sprintf("X-Field-%d", i)] = values[i : i+1]
					}
					w.WriteHeader(http.StatusAccepted)
					if flushed {
						w.(http.Flusher).Flush()
					}
					for i := range values {
						values[i] = "changed"
					}
				}})
				for i := range 2 {
					r := s.post("k", "{}")
					wantReply(t, r, 202, "", i > 0)
					for i := range n {
						if got := fmt.Sprint(r.header[fmt.Sprintf("X-Field-%d", i)]); got != fmt.Sprintf("[%d]", i) {
							t.Errorf("the field %d is %s", i, got)
						}
					}
				}
			})
		}
	}
}
