package stetlambda_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stethttp/adaptertest"
)

// gateway is API Gateway in front of a function, as far as payload format 2.0 goes.
func gateway(function stetlambda.HTTPHandler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e, sent events.APIGatewayV2HTTPRequest
		e.Version, e.RawPath, e.RawQueryString = "2.0", r.URL.EscapedPath(), r.URL.RawQuery
		e.Headers = map[string]string{"host": r.Host}
		for name, vs := range r.Header {
			if name == "Cookie" {
				e.Cookies = strings.Split(strings.Join(vs, "; "), "; ")
				continue
			}
			e.Headers[strings.ToLower(name)] = strings.Join(vs, ",")
		}
		e.RequestContext.HTTP.Method = r.Method
		e.RequestContext.HTTP.SourceIP, _, _ = net.SplitHostPort(r.RemoteAddr)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		e.Body, e.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
		if err := again(e, &sent); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		out, err := function(r.Context(), sent)
		var got events.APIGatewayV2HTTPResponse
		if err == nil {
			err = again(out, &got)
		}
		body = []byte(got.Body)
		if err == nil && got.IsBase64Encoded {
			body, err = base64.StdEncoding.DecodeString(got.Body)
		}
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, `{"message":"Internal Server Error"}`)
			return
		}
		for name, v := range got.Headers {
			w.Header().Set(name, v)
		}
		w.Header()["Set-Cookie"] = got.Cookies
		w.WriteHeader(got.StatusCode)
		_, _ = w.Write(body)
	})
}

// again is v after it was sent as JSON.
func again(v, into any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

func TestFunctionPassesTheCasesOfAdapters(t *testing.T) {
	adaptertest.Run(t, adaptertest.Adapter{
		Serve: func(t testing.TB, m *stethttp.Middleware, routes []adaptertest.Route) string {
			mux := http.NewServeMux()
			for _, r := range routes {
				mux.Handle(r.Method+" "+r.Path, m.Handler(r.Handler((*http.Request).PathValue)))
			}
			return adaptertest.Serve(t, gateway(stetlambda.HTTP(mux)))
		},
		ServeTx: func(t testing.TB, m *stethttp.TxMiddleware[*adaptertest.Tx], routes []adaptertest.Route) string {
			mux := http.NewServeMux()
			for _, r := range routes {
				mux.Handle(r.Method+" "+r.Path, m.HandleTx(r.HandlerTx((*http.Request).PathValue)))
			}
			return adaptertest.Serve(t, gateway(stetlambda.HTTP(mux)))
		},
		Lacks: map[adaptertest.Ability]string{
			adaptertest.Streaming: "Lambda sends whole responses",
			adaptertest.Fields:    "API Gateway joins fields of one name, both ways",
		},
	})
}
