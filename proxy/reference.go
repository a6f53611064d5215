package proxy

import (
	"log/slog"
	"net/http"
	"strings"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// refer sets how the middleware reads the reference of a request.
func (r *Route) refer(o *stethttp.Options, log *slog.Logger) error {
	name, inHeader := strings.CutPrefix(r.Reference, "header:")
	switch {
	case r.Reference == "":
	case !inHeader && !strings.HasPrefix(r.Reference, "/"):
		return at("reference", `%q is neither header:NAME nor a JSON pointer, like "/order/id"`, r.Reference)
	case !inHeader:
		o.RefPointer = r.Reference
	case name == "" || store.LabelText(name) != name || strings.ContainsAny(name, " \t:"):
		return at("reference", "%q is no name of a header", name)
	default:
		name = http.CanonicalHeaderKey(name)
		o.Ref = func(req *http.Request) string {
			ref := single(req, name)
			if len(ref) > store.MaxLabel || store.LabelText(ref) != ref || strings.HasPrefix(ref, "sealed:") {
				log.Warn("proxy: an operation has no reference: what is in its header cannot be one", slog.String("route", r.class()), slog.Int("bytes", len(ref)))
				return ""
			}
			return ref
		}
	}
	return nil
}
