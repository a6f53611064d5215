package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/aws/aws-lambda-go/events"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetconnect"
	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/contrib/stetmcp"
	"github.com/stet-go/stet/contrib/stetwatermill"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/stetmsg"
)

func serveConnect(engine *stet.Engine) (target, error) {
	var options []connect.HandlerOption
	if engine != nil {
		i, err := stetconnect.New(engine, stetconnect.Options{Scope: func(context.Context, connect.AnyRequest) (string, error) { return "all", nil }})
		if err != nil {
			return target{}, err
		}
		options = append(options, connect.WithInterceptors(i))
	}
	mux := http.NewServeMux()
	mux.Handle(payMethod, connect.NewUnaryHandler(payMethod, func(ctx context.Context, req *connect.Request[wrapperspb.BytesValue]) (*connect.Response[wrapperspb.BytesValue], error) {
		res, err := pay(ctx, req.Msg)
		if err != nil {
			return nil, err
		}
		return connect.NewResponse(res.(*wrapperspb.BytesValue)), nil
	}, options...))
	t, err := serveHandler("connect", mux)
	t.dial = func() (caller, error) {
		transport := &http.Transport{}
		return &connectCaller{transport, connect.NewClient[wrapperspb.BytesValue, wrapperspb.BytesValue](&http.Client{Transport: transport}, "http://"+t.addr+payMethod)}, nil
	}
	return t, err
}

// connectCaller has a connection of its own.
type connectCaller struct {
	transport *http.Transport
	client    *connect.Client[wrapperspb.BytesValue, wrapperspb.BytesValue]
}

func (c *connectCaller) close() { c.transport.CloseIdleConnections() }

// call implements caller.
func (c *connectCaller) call(key string) error {
	req := connect.NewRequest(wrapperspb.Bytes(body))
	req.Header().Set("Idempotency-Key", key)
	_, err := c.client.CallUnary(context.Background(), req)
	return err
}

// direct is a caller of a function in this process.
type direct func(key string) error

func (d direct) call(key string) error { return d(key) }
func (direct) close()                  {}

// serveLambda calls the function as Lambda's runtime does, in this process.
func serveLambda(engine *stet.Engine) (target, error) {
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		res, err := pay(r.Context(), wrapperspb.Bytes(b))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(res.(*wrapperspb.BytesValue).GetValue())
	})
	if engine != nil {
		m, err := stethttp.New(engine, options)
		if err != nil {
			return target{}, err
		}
		h = m.Handler(h)
	}
	f := stetlambda.HTTP(h)
	call := direct(func(key string) error {
		var e events.APIGatewayV2HTTPRequest
		e.Version, e.RawPath, e.Body = "2.0", "/payments/7", string(body)
		e.Headers = map[string]string{"content-type": "application/json", "idempotency-key": key, "host": "api.example"}
		e.RequestContext.HTTP.Method, e.RequestContext.HTTP.Path, e.RequestContext.HTTP.Protocol = http.MethodPost, "/payments/7", "HTTP/1.1"
		res, err := f(context.Background(), e)
		if err == nil && res.StatusCode != http.StatusCreated {
			err = fmt.Errorf("lambda: status %d: %s", res.StatusCode, res.Body)
		}
		return err
	})
	return target{name: "lambda", dial: func() (caller, error) { return call, nil }, close: func() {}}, nil
}

// serveWatermill has a router over a channel in this process; a call publishes a message,
// and returns when it was acknowledged.
func serveWatermill(engine *stet.Engine) (target, error) {
	log := watermill.NopLogger{}
	channel := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, log)
	router, err := message.NewRouter(message.RouterConfig{}, log)
	if err != nil {
		return target{}, err
	}
	h := router.AddConsumerHandler("billing", "orders", channel, func(m *message.Message) error {
		_, err := pay(m.Context(), wrapperspb.Bytes(m.Payload))
		return err
	})
	if engine != nil {
		guard, err := stetwatermill.Middleware(engine, stetwatermill.Options{
			Options:    stetmsg.Options[*message.Message]{Operation: stetwatermill.UUID},
			DeadLetter: func(_ context.Context, _ *message.Message, why stetmsg.Decision) error { return why.Err },
		})
		if err != nil {
			return target{}, err
		}
		h.AddMiddleware(guard)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	call := direct(func(key string) error { return channel.Publish("orders", message.NewMessage(key, body)) })
	return target{name: "watermill", dial: func() (caller, error) { return call, nil }, close: func() {
		_ = errors.Join(router.Close(), channel.Close(), <-ended)
	}}, nil
}

func serveMCP(engine *stet.Engine) (target, error) {
	server := mcp.NewServer(&mcp.Implementation{Name: "bench"}, nil)
	if engine != nil {
		p, err := stetmcp.New(engine, stetmcp.Options{Scope: stetmcp.SingleTenant, KeyName: "key"})
		if err != nil {
			return target{}, err
		}
		server.AddReceivingMiddleware(p.Middleware())
	}
	mcp.AddTool(server, &mcp.Tool{Name: "pay"}, func(_ context.Context, _ *mcp.CallToolRequest, p payment) (*mcp.CallToolResult, receipt, error) {
		return nil, receipt{executed.Add(1), p}, nil
	})
	t, err := serveHandler("mcp", mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{JSONResponse: true}))
	t.dial = func() (caller, error) {
		transport := &http.Transport{}
		client := mcp.NewClient(&mcp.Implementation{Name: "agent"}, nil)
		session, err := client.Connect(context.Background(), &mcp.StreamableClientTransport{
			Endpoint: "http://" + t.addr, HTTPClient: &http.Client{Transport: transport}, DisableStandaloneSSE: true}, nil)
		return &agent{transport, session}, err
	}
	return t, err
}

// agent has a session of its own.
type agent struct {
	transport *http.Transport
	session   *mcp.ClientSession
}

func (a *agent) close() {
	_ = a.session.Close()
	a.transport.CloseIdleConnections()
}

// call implements caller.
func (a *agent) call(key string) error {
	res, err := a.session.CallTool(context.Background(), &mcp.CallToolParams{Name: "pay", Arguments: json.RawMessage(body), Meta: mcp.Meta{"key": key}})
	if err == nil && res.IsError {
		b, _ := json.Marshal(res.Content)
		err = fmt.Errorf("mcp: %s", b)
	}
	return err
}
