package dashboard

import (
	"net/http"

	"github.com/stet-go/stet/internal/admin"
)

// policy allows only the page's own files: no script, style or connection from elsewhere, no
// inline script, no text as markup, no frame around it (Content Security Policy Level 3, Trusted Types).
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
		h.refuse(w, &admin.Error{Condition: admin.CrossOrigin, Detail: "the browser reports that a page of another site sent this request"})
		return
	}
	if h.o.Loopback && !admin.FromThisHost(r) {
		h.refuse(w, &admin.Error{Condition: admin.HostRefused,
			Detail: "without a token, only requests of this host are answered, to 127.0.0.1, [::1] or localhost"})
		return
	}
	h.mux.ServeHTTP(w, r)
}

// caller is who sends a request.
type caller struct {
	who     string // "" if it is not known
	trusted bool   // may see results and make changes
}

// admit returns who sends a request, or why they are refused.
func (h *handler) admit(r *http.Request) (caller, *admin.Error) {
	if h.o.Loopback {
		return caller{}, nil
	}
	t, ok := Bearer(r, h.o.Tokens)
	if !ok {
		return caller{}, &admin.Error{Condition: admin.TokenRequired, Detail: "the Authorization header must be Bearer and the token"}
	}
	return caller{t.Name, t.Change}, nil
}
