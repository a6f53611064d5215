package stetconnect_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/store/memory"
)

func TestARetryGetsTheFirstResponseInEveryProtocolAndCodec(t *testing.T) {
	for name, st := range newStores(t) {
		for _, w := range ways() {
			t.Run(name+"/"+w.name, func(t *testing.T) {
				var s *service
				s = serve(t, newEngine(t, st), stetconnect.Options{}, func(_ context.Context, req *connect.Request[text]) (*connect.Response[object], error) {
					res := connect.NewResponse(receipt(s.executed.Load()))
					res.Header().Set("X-Receipt", "r-1")
					res.Header().Add("X-Many", "a")
					res.Header().Add("X-Many", "b")
					res.Header().Set("X-Raw-Bin", connect.EncodeBinaryHeader([]byte{0, 255}))
					res.Trailer().Set("X-Sum", "s-1")
					return res, nil
				})
				client := s.to(w.options...)
				for i := range 3 {
					res, err := client.CallUnary(t.Context(), ask("10", w.name))
					if err != nil {
						t.Fatal(err)
					}
					if !proto.Equal(res.Msg, receipt(1)) {
						t.Errorf("got %v; want the first receipt", res.Msg)
					}
					if replayed := res.Header().Get("Idempotent-Replayed") == "true"; replayed != (i > 0) {
						t.Errorf("call %d: replayed is %v", i, replayed)
					}
					raw, err := connect.DecodeBinaryHeader(res.Header().Get("X-Raw-Bin"))
					if res.Header().Get("X-Receipt") != "r-1" || !slices.Equal(res.Header().Values("X-Many"), []string{"a", "b"}) ||
						res.Trailer().Get("X-Sum") != "s-1" || err != nil || !bytes.Equal(raw, []byte{0, 255}) {
						t.Errorf("call %d: header %v, trailer %v", i, res.Header(), res.Trailer())
					}
				}
				s.want(t, 1)
			})
		}
	}
}

func TestARetryGetsTheFirstErrorWithItsDetailsAndMetadata(t *testing.T) {
	for name, st := range newStores(t) {
		for _, w := range ways() {
			t.Run(name+"/"+w.name, func(t *testing.T) {
				s := serve(t, newEngine(t, st), stetconnect.Options{}, func(context.Context, *connect.Request[text]) (*connect.Response[object], error) {
					e := connect.NewError(connect.CodeFailedPrecondition, errors.New("card declined: 100 % \u00fc"))
					detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "DECLINED", Domain: "bank"})
					if err != nil {
						t.Error(err)
					}
					e.AddDetail(detail)
					e.Meta().Set("X-Decline", "51")
					return nil, e
				})
				client := s.to(w.options...)
				for i := range 3 {
					_, err := client.CallUnary(t.Context(), ask("10", w.name))
					e, ok := errors.AsType[*connect.Error](err)
					if !ok {
						t.Fatal(err)
					}
					if e.Code() != connect.CodeFailedPrecondition || e.Message() != "card declined: 100 % \u00fc" || e.Meta().Get("X-Decline") != "51" {
						t.Errorf("call %d: %v %q, metadata %v", i, e.Code(), e.Message(), e.Meta())
					}
					if replayed := e.Meta().Get("Idempotent-Replayed") == "true"; replayed != (i > 0) {
						t.Errorf("call %d: replayed is %v", i, replayed)
					}
					if len(e.Details()) != 1 {
						t.Fatalf("call %d: %d details", i, len(e.Details()))
					}
					detail, err := e.Details()[0].Value()
					if info, ok := detail.(*errdetails.ErrorInfo); !ok || info.GetReason() != "DECLINED" || err != nil {
						t.Errorf("call %d: detail %v, %v", i, detail, err)
					}
					if x := stetconnect.ExecutionOf(err); x.String() != "executed" && err != nil {
						t.Errorf("call %d: %v", i, x)
					}
				}
				s.want(t, 1)
			})
		}
	}
}

// post sends a request of Connect's protocol as bytes, and returns the answer as such.
func post(t *testing.T, s *service, contentType, body, key string) (status int, header http.Header, content []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+chargePath, bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("X-Account", "acct_1")
	req.Header.Set("Idempotency-Key", key)
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	content, err = io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	res.Header.Del("Date")
	return res.StatusCode, res.Header, content
}

func TestTheReplayOfAResponseIsTheSameToTheLastByteButForItsMark(t *testing.T) {
	for _, fails := range []bool{false, true} {
		for contentType, body := range map[string]string{"application/json": `"10"`, "application/proto": "\x0a\x0210"} {
			var s *service
			s = serve(t, newEngine(t, memory.New(memory.Options{})), stetconnect.Options{}, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[object], error) {
				info, _ := connect.CallInfoForHandlerContext(ctx)
				info.ResponseHeader().Set("X-Of-Call", "1")
				info.ResponseHeader().Add("X-Both", "call")
				info.ResponseTrailer().Set("X-Trailer-Of-Call", "1")
				if fails {
					e := connect.NewError(connect.CodeAborted, errors.New("no"))
					e.Meta().Set("X-Meta", "1")
					e.Meta().Add("X-Both", "error")
					return nil, e
				}
				res := connect.NewResponse(receipt(s.executed.Load()))
				res.Header().Add("X-Both", "response")
				res.Trailer().Set("X-Trailer", "1")
				return res, nil
			})
			status, header, content := post(t, s, contentType, body, `"k"`)
			again, replay, same := post(t, s, contentType, body, `"k"`)
			if replay.Get("Idempotent-Replayed") != "true" {
				t.Errorf("not replayed: %d %v %s", again, replay, same)
			}
			replay.Del("Idempotent-Replayed")
			if status != again || !bytes.Equal(content, same) || !maps.EqualFunc(header, replay, slices.Equal) {
				t.Errorf("%s, fails %v: first\n%d %v\n%s\nthen\n%d %v\n%s", contentType, fails, status, header, content, again, replay, same)
			}
			s.want(t, 1)
		}
	}
}
