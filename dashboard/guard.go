package dashboard

import (
	"net"
	"net/http"

	"github.com/stet-go/stet/internal/desk"
)

// policy lets the page do what it does and nothing else: no script, style or
// connection from elsewhere, none written into the page, no text made markup, no
// frame around it (Content Security Policy Level 3, Trusted Types).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// headers are those of every response.
var headers = map[string]string{
	"Cache-Control":                "no-store",
	"Content-Security-Policy":      policy,
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Referrer-Policy":              "no-referrer",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range headers {
		w.Header().Set(name, value)
	}
	if err := h.csrf.Check(r); err != nil {
		h.refuse(w, &desk.Error{Condition: desk.CrossOrigin, Detail: "the browser says that another site's page has sent this"})
		return
	}
	if h.o.Loopback && !local(r) {
		h.refuse(w, &desk.Error{Condition: desk.HostRefused,
			Detail: "without a token, only this host is answered, and only by a name of its loopback interface: 127.0.0.1, [::1] or localhost"})
		return
	}
	h.mux.ServeHTTP(w, r)
}

// local reports whether a request comes from this host, for a name that no other
// site can have.
func local(r *http.Request) bool {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if !desk.LoopbackName(host) || !loopback(r.RemoteAddr) {
		return false
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return !ok || loopback(at.String())
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// caller is who sends a request.
type caller struct {
	who     string // "" if they have to say so themselves
	trusted bool   // may see results and make changes
}

// admit returns who sends a request, or why they are refused.
func (h *handler) admit(r *http.Request) (caller, *desk.Error) {
	switch {
	case h.o.Loopback:
		return caller{}, nil
	case h.o.Authenticate != nil:
		who, ok := h.o.Authenticate(r)
		if !ok || who == "" {
			return caller{}, &desk.Error{Condition: desk.NotAllowed, Detail: "the service does not let you"}
		}
		return caller{who, true}, nil
	case !desk.Bearer(r, h.o.Token):
		return caller{}, &desk.Error{Condition: desk.TokenRequired, Detail: "the Authorization header has to be Bearer and the token"}
	}
	return caller{trusted: true}, nil
}
