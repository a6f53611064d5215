package stetclient_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stet-go/stet/stetclient"
)

// instant is a RoundTripper that costs next to nothing.
type instant struct {
	res  http.Response
	body strings.Reader
}

func (i *instant) RoundTrip(req *http.Request) (*http.Response, error) {
	_ = req.Body.Close()
	i.body.Reset(text)
	i.res = http.Response{StatusCode: http.StatusCreated, Header: header, Body: i, ContentLength: int64(len(text)), Request: req}
	return &i.res, nil
}

func (i *instant) Read(p []byte) (int, error) { return i.body.Read(p) }
func (i *instant) Close() error               { return nil }

var (
	text   = strings.Repeat("x", 1000)
	header = http.Header{"Content-Type": {"application/json"}}
)

// requests returns a function that sends a POST of 1 KB.
func requests(t testing.TB, rt http.RoundTripper) func() {
	body := strings.NewReader(text)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://service.test/payments", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	buf := make([]byte, 2048)
	rc := req.Body
	return func() {
		body.Reset(text)
		req.Body = rc
		res, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			m, err := res.Body.Read(buf)
			if n += m; err == io.EOF {
				break
			}
		}
		if _ = res.Body.Close(); n != len(text) {
			t.Fatalf("read %d bytes", n)
		}
	}
}

func TestFirstAttemptCostsFewAllocations(t *testing.T) {
	base := &instant{}
	tr, err := stetclient.New(base, stetclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	plain := testing.AllocsPerRun(1000, requests(t, base))
	through := testing.AllocsPerRun(1000, requests(t, tr))
	if through-plain > 10 { // 9 without the race detector
		t.Errorf("%v allocations more than without it (%v); want 10 at most", through-plain, plain)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	base := &instant{}
	tr, err := stetclient.New(base, stetclient.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for name, rt := range map[string]http.RoundTripper{"plain": base, "stetclient": tr} {
		b.Run(name, func(b *testing.B) {
			send := requests(b, rt)
			b.ReportAllocs()
			for b.Loop() {
				send()
			}
		})
	}
}
