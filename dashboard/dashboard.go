// Package dashboard is for operators: a page, and the API under it, that show
// what an engine's store holds, and let people say what became of operations
// that nobody knows about.
//
//	h, err := dashboard.New(engine, dashboard.Options{Token: os.Getenv("STET_ADMIN_TOKEN")})
//	…
//	mux.Handle("/stet/", http.StripPrefix("/stet", h))
//
// The README of this folder describes the API. stet proxy has it on its admin
// listener, and 'stet keys --admin URL' speaks it.
//
// # Who may do what
//
// With Options.Token, whoever has the token may do everything, and nobody else
// anything. Options.Authenticate is for services with logins of their own.
// With Options.Loopback instead, whoever is on the same host may look at records
// and at nothing else: neither results nor changes. A port of the loopback
// interface can be reached by every user and every program of the host, and
// letting an operation run again is not for all of them.
//
// Whatever the browser says comes from another site's page is refused, and
// without a token whatever does not ask for a name of the loopback interface:
// such a page might have had its own name resolved to this host.
//
// # What is written down
//
// Every change is written to Options.Audit before it is made and after: who,
// when, why, from what, to what. What cannot be written down is not done. No key,
// no scope and no body is in it, nor in a URL, and so in no access log.
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
	"github.com/stet-go/stet/internal/desk"
)

// MinToken is the least length of Options.Token, in bytes.
const MinToken = 16

// Options configure the handler. One of Token, Authenticate and Loopback is
// required.
type Options struct {
	// Token is the bearer token (RFC 6750) that requests must have: MinToken
	// bytes or more of visible ASCII. Make it with a random generator, and give
	// it to the process in a variable of its environment or in a file: arguments
	// are shown to every user of the host.
	Token string
	// Authenticate, in place of Token, says who sends a request, for the audit,
	// and whether they may do everything.
	Authenticate func(r *http.Request) (who string, ok bool)
	// Loopback, in place of both, lets everybody on this host look at records,
	// for a listener of the loopback interface. Other requests are refused.
	Loopback bool

	// Namespace is the engine's; New refuses another one.
	Namespace string
	// Classes are those of the engine, for the page to offer: a change names the
	// class whose policy.Retention an outcome gets. New refuses unknown ones.
	Classes []string
	// Store says what the store is, for the page and the audit: "postgres,
	// database shop on db1", and no URL with a password.
	Store string
	// Audit gets every change, with the level Info; a handler that is not enabled
	// for that, or returns an error, makes changes impossible. Default:
	// slog.Default's handler.
	Audit slog.Handler
	// ErrorLog gets what went wrong with the store. Default slog.Default().
	ErrorLog *slog.Logger
}

// handler serves page and API.
type handler struct {
	o    Options
	mux  *http.ServeMux
	desk *desk.Local
	csrf *http.CrossOriginProtection
}

// New returns the handler for operators. It keeps nothing but its arguments: the
// engine, and its store, stay the caller's to close. Everything that is wrong
// with the options is in the error.
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
	h.desk = &desk.Local{Engine: e, Place: o.Store, Audit: h.audit}
	h.routes()
	return h, nil
}

func (o *Options) check(e *stet.Engine) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	ways := 0
	for _, way := range []bool{o.Token != "", o.Authenticate != nil, o.Loopback} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		bad("one of Options.Token, Authenticate and Loopback is required, and not %d of them", ways)
	}
	if o.Token != "" {
		if err := CheckToken(o.Token); err != nil {
			bad("Options.Token: %w", err)
		}
	}
	if stet.Digest(o.Namespace, "scope", "key") != e.ID("scope", "key") {
		bad("Options.Namespace is not the engine's")
	}
	for _, class := range o.Classes {
		if _, ok := e.Policy(class); !ok {
			bad("Options.Classes has %q, which is not among the engine's", class)
		}
	}
	return errors.Join(errs...)
}

// CheckToken returns what is wrong with a token as Options.Token has to be. The
// token is not in the error.
func CheckToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("%d bytes; give it at least %d, as 'openssl rand -hex 32' makes them", len(token), MinToken)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("it has to be of visible ASCII, without spaces")
	}
	return nil
}

// audit writes a change down.
func (h *handler) audit(ctx context.Context, e desk.Entry) error {
	to := h.o.Audit
	if to == nil {
		to = slog.Default().Handler()
	}
	rec := slog.NewRecord(e.At, slog.LevelInfo, "stet: change by hand", 0)
	rec.AddAttrs(slog.String("who", e.Who), slog.String("via", e.Via), slog.String("why", e.Why), slog.String("action", e.Action),
		slog.String("result", e.Result), slog.String("store", e.Store), slog.String("id", e.ID), slog.String("scope_digest", e.Scope),
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

//go:embed page.html page.js page.css
var files embed.FS

// routes fills the mux.
func (h *handler) routes() {
	for path, file := range map[string][2]string{
		"/{$}": {"page.html", "text/html; charset=utf-8"}, "/page.js": {"page.js", "text/javascript; charset=utf-8"},
		"/page.css": {"page.css", "text/css; charset=utf-8"},
	} {
		content, err := files.ReadFile(file[0])
		if err != nil {
			panic(err) // it is embedded
		}
		h.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file[1])
			_, _ = w.Write(content) // a client that has left hears nothing
		})
	}
	for pattern, serve := range map[string]func(*http.Request) (any, error){
		"GET /v1/about":                            h.about,
		"GET /v1/summary":                          h.summary,
		"GET /v1/operations":                       h.list,
		"GET /v1/operations/{id}":                  h.get,
		"POST /v1/digest":                          h.digest,
		"POST /v1/operations/{id}/" + desk.Resolve: h.change(desk.Resolve),
		"POST /v1/operations/{id}/" + desk.Release: h.change(desk.Release),
		"POST /v1/operations/{id}/" + desk.Expire:  h.change(desk.Expire),
	} {
		method, path, _ := strings.Cut(pattern, " ")
		h.mux.Handle(pattern, h.guarded(serve))
		h.mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", method)
			h.refuse(w, &desk.Error{Condition: desk.NoMethod, Detail: "it takes " + method})
		})
	}
	h.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		h.refuse(w, &desk.Error{Condition: desk.NoPage, Detail: "the API is under v1/, and the page at the root"})
	})
}
