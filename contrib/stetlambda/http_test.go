package stetlambda_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// payments is a protected service that counts its runs.
func payments(t testing.TB, runs *atomic.Int64) stetlambda.HTTPHandler {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), stet.Options{})
	m := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stetlambda.Claim("sub"), ErrorLog: quiet}))
	mux := http.NewServeMux()
	mux.Handle("POST /payments", m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != `{"amount":42}` || r.ContentLength != 13 {
			t.Errorf("%s, %d, %v", body, r.ContentLength, err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2; Path=/")
		w.Header().Add("Link", "<x>")
		w.Header().Add("Link", "<y>")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"charge":%d}`, runs.Add(1))
	})))
	return stetlambda.HTTP(mux)
}

func TestRetryByAPIGatewayGetsTheFirstResponse(t *testing.T) {
	var runs atomic.Int64
	f := payments(t, &runs)
	for i := range 3 {
		out, err := f(t.Context(), read[events.APIGatewayV2HTTPRequest](t, "api.json"))
		if err != nil || out.StatusCode != 201 || out.Body != `{"charge":1}` || out.IsBase64Encoded || out.Headers["Content-Type"] != "application/json" ||
			out.Headers["Link"] != "<x>, <y>" || out.Headers["Set-Cookie"] != "" || i == 0 && !slices.Equal(out.Cookies, []string{"a=1", "b=2; Path=/"}) {
			t.Errorf("%d: %+v, %v", i, out, err)
		}
		if got := out.Headers["Idempotent-Replayed"]; (got == "true") != (i > 0) {
			t.Errorf("%d: replayed: %q", i, got)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

func TestKeysThatAPIGatewayHasJoinedAreRefused(t *testing.T) {
	var runs atomic.Int64
	f := payments(t, &runs)
	for _, key := range []string{"k-1,k-2", "k-1, k-1", `"k-1","k-2"`, `"k-1", "k-1"`, ""} {
		e := read[events.APIGatewayV2HTTPRequest](t, "api.json")
		e.Headers["idempotency-key"] = key
		out, err := f(t.Context(), e)
		if err != nil || out.StatusCode != 400 || runs.Load() != 0 || out.Headers["Content-Type"] != "application/problem+json" {
			t.Errorf("%s: %+v, %v", key, out, err)
		}
	}
}

func TestRequestWithoutAuthorizerDataIsRefused(t *testing.T) {
	var runs atomic.Int64
	f := payments(t, &runs)
	for _, name := range []string{"api.json", "url.json"} {
		e := read[events.APIGatewayV2HTTPRequest](t, name)
		e.RawPath = "/payments"
		if e.RequestContext.Authorizer.JWT != nil {
			e.RequestContext.Authorizer = nil
		}
		if out, err := f(t.Context(), e); err != nil || out.StatusCode != 403 || runs.Load() != 0 {
			t.Errorf("%+v, %v", out, err)
		}
	}
}

func TestRequestIsThatOfTheClient(t *testing.T) {
	var got *http.Request
	var body []byte
	f := stetlambda.HTTP(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, body = r, must[[]byte](t)(io.ReadAll(r.Body)) }))
	if _, err := f(t.Context(), read[events.APIGatewayV2HTTPRequest](t, "api.json")); err != nil {
		t.Fatal(err)
	}
	if got.Method != "POST" || got.URL.String() != "/payments?test=1&test=2" || got.RequestURI != got.URL.String() || got.Host != "id.execute-api.us-east-1.amazonaws.com" ||
		got.Header.Get("Cookie") != "session=1; theme=dark" || got.Header.Get("User-Agent") != "curl/8.0 (like, this)" || got.RemoteAddr != "205.255.255.176:0" ||
		len(got.Header["Host"]) != 0 || len(got.Header["Idempotency-Key"]) != 1 || stetlambda.Event(got.Context()).RequestContext.RequestID != "JKJaXmPLvHcESHA=" {
		t.Errorf("%+v", got)
	}
	if _, err := f(t.Context(), read[events.APIGatewayV2HTTPRequest](t, "url.json")); err != nil {
		t.Fatal(err)
	}
	if got.URL.Path != "/café/a/b" || got.URL.EscapedPath() != "/caf%C3%A9/a%2Fb" || !bytes.Equal(body, []byte{0, 1, 0xff}) || stetlambda.Event(got.Context()).RequestContext.Authorizer.IAM.UserID != "AIDA..." {
		t.Errorf("%+v, %q", got.URL, body)
	}
	// API Gateway has decoded some paths already.
	e := read[events.APIGatewayV2HTTPRequest](t, "url.json")
	e.RawPath, e.Headers["host"] = "100%", ""
	if _, err := f(t.Context(), e); err != nil || got.URL.Path != "/100%" || got.Host != "abc.lambda-url.us-west-2.on.aws" {
		t.Errorf("%+v, %v", got, err)
	}
	if stetlambda.Event(t.Context()) != nil {
		t.Error("an event outside of Lambda")
	}
}

// respond is the response of a handler, as Lambda sends it.
func respond(t *testing.T, method string, h http.HandlerFunc) (events.APIGatewayV2HTTPResponse, []byte) {
	t.Helper()
	e := read[events.APIGatewayV2HTTPRequest](t, "url.json")
	e.RequestContext.HTTP.Method = method
	out := must[events.APIGatewayV2HTTPResponse](t)(stetlambda.HTTP(h)(t.Context(), e))
	var sent events.APIGatewayV2HTTPResponse
	b := must[[]byte](t)(json.Marshal(out))
	if len(b) > 6<<20 {
		t.Errorf("a response of %d bytes, which Lambda does not send", len(b))
	}
	if err := json.Unmarshal(b, &sent); err != nil {
		t.Fatal(err)
	}
	body := []byte(sent.Body)
	if sent.IsBase64Encoded {
		body = must[[]byte](t)(base64.StdEncoding.DecodeString(sent.Body))
	}
	return out, body
}

func TestResponseIsThatOfTheHandlerByteForByte(t *testing.T) {
	for name, want := range map[string]string{"text": "a <b> & \u2028\x00", "binary": "\xff\x00\x01", "empty": "", "large": strings.Repeat("<", 4<<20)} {
		if _, got := respond(t, "POST", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, want) }); string(got) != want {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
	out, _ := respond(t, "POST", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusAccepted)
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("Late", "x")
		_, _ = io.WriteString(w, "x")
	})
	if out.StatusCode != 202 || !out.IsBase64Encoded || out.Headers["Late"] != "" {
		t.Errorf("%+v", out)
	}
	if out, body := respond(t, "HEAD", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }); len(body) != 0 || out.StatusCode != 200 {
		t.Errorf("%+v", out)
	}
	if out, body := respond(t, "POST", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		_, _ = io.WriteString(w, "x")
	}); len(body) != 0 || out.StatusCode != 204 || out.Headers["Content-Type"] != "" {
		t.Errorf("%+v", out)
	}
	if out, _ := respond(t, "POST", func(http.ResponseWriter, *http.Request) {}); out.StatusCode != 200 {
		t.Errorf("%+v", out)
	}
}

func TestResponseThatLambdaCannotSendIsAnError(t *testing.T) {
	for name, body := range map[string]string{"text": strings.Repeat("x", 6<<20), "binary": strings.Repeat("\xff", 5<<20), "pieces": strings.Repeat("x", 12<<20)} {
		out, got := respond(t, "POST", func(w http.ResponseWriter, _ *http.Request) {
			for part := range slices.Chunk([]byte(body), 1<<20) {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		})
		if out.StatusCode != 500 || !strings.Contains(string(got), "larger than Lambda") {
			t.Errorf("%s: %d, %.80s", name, out.StatusCode, got)
		}
	}
}

func TestPanicIsAnErrorOfTheInvocation(t *testing.T) {
	f := stetlambda.HTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		panic("oops")
	}))
	if out, err := f(t.Context(), read[events.APIGatewayV2HTTPRequest](t, "api.json")); err == nil || out.StatusCode != 0 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestWriteAfterTheHandlerReturnedIsRefused(t *testing.T) {
	var left http.ResponseWriter
	out, _ := respond(t, "POST", func(w http.ResponseWriter, _ *http.Request) { left = w })
	left.Header().Set("Late", "x")
	left.WriteHeader(http.StatusTeapot)
	if _, err := left.Write([]byte("x")); err == nil || out.StatusCode != 200 || out.Body != "" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestEventsOfOtherFormatsAreRefused(t *testing.T) {
	f := stetlambda.HTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("run") }))
	for _, text := range []string{`{}`, `{"version":"1.0","httpMethod":"POST","path":"/payments"}`, `{"resource":"/","httpMethod":"POST","requestContext":{"httpMethod":"POST"}}`, `{"Records":[{}]}`} {
		var e events.APIGatewayV2HTTPRequest
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		if out, err := f(context.Background(), e); err == nil {
			t.Errorf("%s: %+v", text, out)
		}
	}
	e := read[events.APIGatewayV2HTTPRequest](t, "url.json")
	e.Body = "!"
	if out, err := f(t.Context(), e); err != nil || out.StatusCode != 400 {
		t.Errorf("%+v, %v", out, err)
	}
}
