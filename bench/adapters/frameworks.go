package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetfiber"
	"github.com/stet-go/stet/contrib/stetgin"
	"github.com/stet-go/stet/stethttp"
)

// framework serves a payment, behind stet if engine is not nil.
type framework struct {
	name  string
	serve func(engine *stet.Engine) (target, error)
}

var frameworks = []framework{
	{"net/http", serveNetHTTP},
	{"gin", serveGin},
	{"echo", serveEcho},
	{"echo4", serveEcho4},
	{"fiber", serveFiber},
	{"grpc", serveGRPC},
	{"connect", serveConnect},
	{"watermill", serveWatermill},
	{"lambda", serveLambda},
	{"mcp", serveMCP},
}

// payment is the request; its JSON has about 1 KB.
type payment struct {
	Account string   `json:"account"`
	Amount  int      `json:"amount"`
	Lines   []string `json:"lines"`
}

// receipt is the response, of about 1 KB too.
type receipt struct {
	ID int64 `json:"id"`
	payment
}

var body = func() []byte {
	b, err := json.Marshal(payment{Account: "acct_1", Amount: 100, Lines: strings.SplitAfter(strings.Repeat("one line of the order ", 40), "order ")})
	if err != nil {
		panic(err)
	}
	return b
}()

// options are those of all adapters.
var options = stethttp.Options{Scope: stethttp.SingleTenant}

// listen is where a server listens, and how it is called.
func listen(name string, serve func(net.Listener)) (target, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return target{}, err
	}
	go serve(ln) // ends with the listener
	addr := ln.Addr().String()
	return target{name: name, addr: addr, dial: func() (caller, error) { return dialHTTP(addr) }, close: func() { _ = ln.Close() }}, nil
}

// serveHandler serves h by net/http.
func serveHandler(name string, h http.Handler) (target, error) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	t, err := listen(name, func(ln net.Listener) { _ = srv.Serve(ln) })
	t.close = func() { _ = srv.Close() }
	return t, err
}

func serveNetHTTP(engine *stet.Engine) (target, error) {
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var p payment
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		b, err := json.Marshal(receipt{executed.Add(1), p})
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(b)
	})
	if engine != nil {
		m, err := stethttp.New(engine, options)
		if err != nil {
			return target{}, err
		}
		h = m.Handler(h)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /payments/{id}", h)
	return serveHandler("net/http", mux)
}

func serveGin(engine *stet.Engine) (target, error) {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	if engine != nil {
		m, err := stethttp.New(engine, options)
		if err != nil {
			return target{}, err
		}
		router.Use(stetgin.Middleware(m))
	}
	router.POST("/payments/:id", func(c *gin.Context) {
		var p payment
		if err := c.ShouldBindJSON(&p); err != nil {
			_ = c.AbortWithError(http.StatusBadRequest, err)
			return
		}
		c.JSON(http.StatusCreated, receipt{executed.Add(1), p})
	})
	return serveHandler("gin", router)
}

// serveApp serves an app of Fiber's with a payment behind middleware, if there is any.
func serveApp(name string, middleware ...any) (target, error) {
	app := fiber.New()
	for _, m := range middleware {
		app.Use(m)
	}
	app.Post("/payments/:id", func(c fiber.Ctx) error {
		var p payment
		if err := c.Bind().JSON(&p); err != nil {
			return err
		}
		return c.Status(fiber.StatusCreated).JSON(receipt{executed.Add(1), p})
	})
	return listen(name, func(ln net.Listener) {
		if err := app.Listener(ln, fiber.ListenConfig{DisableStartupMessage: true}); err != nil {
			fmt.Println("fiber:", err)
		}
	})
}

func serveFiber(engine *stet.Engine) (target, error) {
	if engine == nil {
		return serveApp("fiber")
	}
	m, err := stethttp.New(engine, options)
	if err != nil {
		return target{}, err
	}
	return serveApp("fiber", stetfiber.Middleware(m))
}
