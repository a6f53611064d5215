// Package dashboard is for operators: a page and an API that show the operations in an
// engine's store, and resolve those whose outcome is unknown.
//
//	h, err := dashboard.New(engine, dashboard.Options{Tokens: tokens})
//	…
//	mux.Handle("/stet/", http.StripPrefix("/stet", h))
//
// The README of this folder describes the API. stet proxy serves it on its admin
// listener, and 'stet keys --admin URL' uses it.
//
// # Who may do what
//
// With Options.Tokens, a request with a token may look at records; a token with Change
// may also see results and make changes. Requests without a token are refused.
// With Options.Loopback instead, every request from the same host may look at records, but not see results or
// make changes, because every user and program of a host can reach its loopback
// interface.
//
// Requests that a browser marks as coming from another site are refused. Without a
// token, requests must name the loopback interface as their host, because a page of
// another site can have its own name resolved to this host.
//
// # Audit
//
// Every change is written to Options.Audit before and after it is made: who, when, why, the old
// and the new state. Each display of a stored result is written before. The actor is the name of
// the token; the name in the request is written as a claim. If
// the audit fails, nothing is done. Keys, scopes and bodies are never in the audit or in URLs,
// and therefore not in access logs.
package dashboard

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// MinToken is the least length of a token, in bytes.
const MinToken = 16

// Options configure the handler. Tokens or Loopback is required.
type Options struct {
	// Tokens are bearer tokens; a request must have one of them.
	Tokens []Token
	// Loopback, in place of tokens, lets every request of this host look at records, for a
	// listener of the loopback interface. Other requests are refused.
	Loopback bool

	// Namespace is the engine's; New refuses another one.
	Namespace string
	// Classes are the engine's classes, which the page offers: a change names the class
	// whose Policy.Retention the outcome gets. New refuses unknown ones.
	Classes []string
	// Store describes the store, for the page and the audit: "postgres, database shop on
	// db1". It must not have a password.
	Store string
	// Audit gets every change, with the level Info; a handler that is not enabled
	// for that, or returns an error, makes changes impossible. Default:
	// slog.Default's handler.
	Audit slog.Handler
	// Activity is an observer of the engine, whose counters the page draws. Default: no charts.
	Activity *Activity
	// ErrorLog gets what went wrong with the store. Default slog.Default().
	ErrorLog *slog.Logger
}

// handler serves page and API.
type handler struct {
	o     Options
	mux   *http.ServeMux
	admin *admin.Local
	csrf  *http.CrossOriginProtection
}

// New returns the handler for operators. The caller closes the engine and its store.
// The error lists everything that is wrong with the options.
func New(e *stet.Engine, o Options) (http.Handler, error) {
	if e == nil {
		return nil, errors.New("dashboard: New needs an engine")
	}
	if err := o.check(e); err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	if o.ErrorLog == nil {
		o.ErrorLog = slog.Default()
	}
	h := &handler{o: o, mux: http.NewServeMux(), csrf: http.NewCrossOriginProtection()}
	h.admin = &admin.Local{Engine: e, Place: o.Store, Audit: h.audit, HTTP: admin.HTTP{Outcome: stethttp.Outcome, Response: stethttp.StoredResponse}}
	h.routes()
	return h, nil
}

func (o *Options) check(e *stet.Engine) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if (len(o.Tokens) > 0) == o.Loopback {
		bad("one of Options.Tokens and Loopback is required, and not both")
	}
	if err := CheckTokens(o.Tokens); err != nil {
		bad("Options.Tokens: %w", err)
	}
	if store.Digest(o.Namespace, "scope", "key") != e.ID("scope", "key") {
		bad("Options.Namespace is not the engine's")
	}
	for _, class := range o.Classes {
		if _, ok := e.Policy(class); !ok {
			bad("Options.Classes has %q, which is not among the engine's", class)
		}
	}
	return errors.Join(errs...)
}

// audit writes a change down, or a result before it is shown.
func (h *handler) audit(ctx context.Context, e admin.Entry) error {
	to := h.o.Audit
	if to == nil {
		to = slog.Default().Handler()
	}
	what := "stet: change by hand"
	if e.Action == admin.Show {
		what = "stet: stored result shown"
	}
	rec := slog.NewRecord(e.At, slog.LevelInfo, what, 0)
	rec.AddAttrs(slog.String("who", e.Who), slog.String("says", e.Says), slog.String("via", e.Via), slog.String("why", e.Why), slog.String("action", e.Action),
		slog.String("result", e.Result), slog.String("store", e.Store), slog.String("id", e.ID), slog.String("scope_digest", e.Scope), slog.String("class", e.Class), slog.String("name", e.Name), slog.String("ref", e.Ref), slog.String("scope_label", e.ScopeLabel),
		slog.Group("from", slog.String("state", e.From.State), slog.String("fence", fmt.Sprint(e.From.Fence)), slog.Int("attempt", e.From.Attempt)),
		slog.String("to", e.To))
	if e.Error != "" {
		rec.AddAttrs(slog.String("error", e.Error))
	}
	if !to.Enabled(ctx, slog.LevelInfo) {
		return errors.New("Options.Audit is not enabled for the level Info")
	}
	return to.Handle(ctx, rec)
}

//go:embed page.html page.js bulk.js charts.js page.css
var files embed.FS

// routes fills the mux.
func (h *handler) routes() {
	for path, file := range map[string][2]string{
		"/{$}": {"page.html", "text/html; charset=utf-8"}, "/page.js": {"page.js", "text/javascript; charset=utf-8"}, "/bulk.js": {"bulk.js", "text/javascript; charset=utf-8"},
		"/charts.js": {"charts.js", "text/javascript; charset=utf-8"},
		"/page.css":  {"page.css", "text/css; charset=utf-8"},
	} {
		content, err := files.ReadFile(file[0])
		if err != nil {
			panic(err) // it is embedded
		}
		h.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file[1])
			_, _ = w.Write(content) // the client may have left
		})
	}
	for pattern, serve := range map[string]func(*http.Request) (any, error){
		"GET /v1/about":                             h.about,
		"GET /v1/summary":                           h.summary,
		"GET /v1/activity":                          h.activity,
		"GET /v1/operations":                        h.list,
		"GET /v1/operations/{id}":                   h.get,
		"POST /v1/digest":                           h.digest,
		"POST /v1/operations/{id}/" + admin.Resolve: h.change(admin.Resolve),
		"POST /v1/operations/{id}/" + admin.Release: h.change(admin.Release),
		"POST /v1/operations/{id}/" + admin.Expire:  h.change(admin.Expire),
		"POST /v1/operations/{id}/" + admin.Cancel:  h.change(admin.Cancel),
	} {
		method, path, _ := strings.Cut(pattern, " ")
		h.mux.Handle(pattern, h.guarded(serve))
		h.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", method)
			h.refuse(w, &admin.Error{Condition: admin.NoMethod, Detail: "it takes " + method})
		})
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		h.refuse(w, &admin.Error{Condition: admin.NoPage, Detail: "the API is under v1/, and the page at the root"})
	})
}
