package stetclient_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/stetclient"
)

func TestAwaitClassifiesOtherResponsesThan202(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		want   stet.Execution
	}{
		"created":                {says(201, `{"id":7}`), stet.Executed},
		"not authorised":         {says(401, ""), stet.NotExecuted},
		"too many":               {says(429, ""), stet.NotExecuted},
		"failed":                 {says(500, ""), stet.MayHaveExecuted},
		"failed and replayed":    {says(500, "", "Idempotent-Replayed", "true"), stet.Executed},
		"failed, not replayed":   {says(500, "", "Idempotent-Replayed", "false"), stet.MayHaveExecuted},
		"by its document":        {says(409, cancelledDocument, "Content-Type", "application/problem+json"), stet.NotExecuted},
		"like a status document": {says(200, done), stet.Executed},
	} {
		t.Run(name, func(t *testing.T) {
			answer := httptest.NewRecorder()
			tc.answer(answer, nil)
			whole := answer.Body.String()
			for _, client := range []*http.Client{
				{Transport: &asking{h: http.HandlerFunc(tc.answer)}},
				throughStet(t, &asking{h: http.HandlerFunc(tc.answer)}),
			} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://service.test/orders", nil)
				if err != nil {
					t.Fatal(err)
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				got, err := stetclient.Await(t.Context(), client, res, stetclient.AwaitOptions{})
				if err != nil || got.Execution != tc.want || got.Status != res.StatusCode || string(got.Body) != whole {
					t.Errorf("%+v, %v; want %v", got, err, tc.want)
				}
			}
		})
	}
}

// 9999 is further than a time.Duration reaches.
func TestAwaitIsGentleWithAFarRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := accepting(says(200, runs, "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"), says(200, done))
		client := throughStet(t, s)
		if _, err := stetclient.Await(t.Context(), client, accepted(t, client), stetclient.AwaitOptions{}); err != nil {
			t.Fatal(err)
		}
		if pause := s.at[2].Sub(s.at[1]); pause < time.Hour {
			t.Errorf("asked again after %v", pause)
		}
	})
}

// hanging is a service that accepts, and whose status resource sends no response or an endless one.
type hanging struct{ body io.ReadCloser }

func (h *hanging) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case req.Method == http.MethodPost:
		w := httptest.NewRecorder()
		w.Header().Set("Location", "/operations/1")
		w.WriteHeader(http.StatusAccepted)
		res := w.Result()
		res.Request = req
		return res, nil
	case h.body == nil:
		<-req.Context().Done()
		return nil, req.Context().Err()
	default:
		return &http.Response{Status: "200 OK", StatusCode: 200, Header: http.Header{}, Request: req, Body: &endless{req}}, nil
	}
}

// endless is a body that ends with its request.
type endless struct{ req *http.Request }

func (e *endless) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Minute):
		return copy(p, " "), nil
	case <-e.req.Context().Done():
		return 0, e.req.Context().Err()
	}
}

func (e *endless) Close() error { return nil }

func TestAwaitEndsIfTheStatusResourceHangs(t *testing.T) {
	for name, body := range map[string]io.ReadCloser{"no answer": nil, "no end": http.NoBody} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &http.Client{Transport: &hanging{body}}
				began := time.Now()
				_, err := stetclient.Await(t.Context(), client, accepted(t, client), stetclient.AwaitOptions{})
				wantError(t, err, stetclient.ReasonTime, stet.MayHaveExecuted)
				if took := time.Since(began); took > 5*time.Minute {
					t.Errorf("returned after %v", took)
				}
			})
		})
	}
}

func TestAwaitLeavesOutHeadersOfTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := accepting(says(200, done))
		client := throughStet(t, s)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://service.test/orders", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Accept-Encoding", "Range", "If-Match", "If-Unmodified-Since"} {
			req.Header.Set(name, "x")
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stetclient.Await(t.Context(), client, res, stetclient.AwaitOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"Accept-Encoding", "Range", "If-Match", "If-Unmodified-Since"} {
			if v := s.reqs[1].Header.Get(name); v != "" {
				t.Errorf("%s: %s", name, v)
			}
		}
	})
}

func TestAwaitPreparesNoRequestToAnotherOrigin(t *testing.T) {
	for location, want := range map[string]string{"/operations/1": "Bearer secret", "https://evil.test/operations/1": ""} {
		synctest.Test(t, func(t *testing.T) {
			s := &asking{h: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					says(202, "", "Location", location)(w, r)
					return
				}
				says(200, done)(w, r)
			})}
			client, prepared := throughStet(t, s), false
			_, err := stetclient.Await(t.Context(), client, accepted(t, client), stetclient.AwaitOptions{Prepare: func(*http.Request) error {
				prepared = true
				return nil
			}})
			if got := s.reqs[1].Header.Get("Authorization"); err != nil || got != want || prepared != (want != "") {
				t.Errorf("%s: received %q, want %q; prepared: %v; %v", location, got, want, prepared, err)
			}
		})
	}
}
