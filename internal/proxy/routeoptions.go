package proxy

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store"
)

// storeOutcomes is the default of Route.Responses.
const storeOutcomes = "store-outcomes"

// responses is the route's stethttp.Options.Responses.
func (r *Route) responses() stethttp.Responses {
	if r.Responses == storeOutcomes {
		return stethttp.StoreOutcomes
	}
	return stethttp.Responses(r.Responses)
}

// notExecuted is the route's stethttp.Options.NotExecuted.
func (r *Route) notExecuted(status int, header http.Header) bool {
	switch p := r.responses(); {
	case p == stethttp.StoreAll:
		return false
	case r.NotExecuted != nil:
		return slices.Contains(r.NotExecuted, status)
	case r.MCP != nil:
		return stethttp.NotExecuted(status, header) // the content says more: see toolWatch
	default:
		return status == http.StatusNotFound || status == http.StatusMethodNotAllowed || p.NotExecuted(status, header)
	}
}

// checkResponses returns an error if a field contradicts Route.Responses.
func (r *Route) checkResponses() error {
	switch {
	case r.responses() == stethttp.StoreOutcomes:
	case r.Settles == settlesService:
		return at("responses", "with settles: service the service decides which responses are stored; leave it out")
	case r.Async != nil:
		return at("responses", "what the service answers to an accepted operation is an outcome, or the operation is sent again, as its client can correct nothing; leave it out")
	case r.MCP != nil:
		return at("responses", "the result of a tool says what happened, and not the status; leave it out")
	case r.responses() == stethttp.StoreAll && len(r.NotExecuted) > 0:
		return at("not_executed", "with responses: store-all every response is stored; leave out one of them")
	}
	return nil
}

// settlesService is the value of Route.Settles if the service writes the outcome.
const settlesService = "service"

// checkSettles returns an error if a field contradicts Route.Settles.
func (c *Config) checkSettles(r *Route) error {
	switch {
	case r.Settles != settlesService && r.Tries != 0:
		return at("tries", "only with settles: service is it known that a request can be sent again")
	case r.Settles != settlesService:
		return nil
	case c.Store.URL != "" && c.Store.Kind() != kindPostgres:
		return at("settles", "a service settles by the SQL functions of PostgreSQL, and the store is another one")
	case r.FailOpen:
		return at("fail_open", "a service that settles needs a claim; without the store there is none")
	case len(r.Unknown) > 0:
		return at("unknown", "with settles: service the record says what happened, whatever the status is")
	case len(r.NotExecuted) > 0:
		return at("not_executed", "with settles: service the record says what happened, whatever the status is")
	case len(r.KeepHeaders)+len(r.DropHeaders) > 0 || r.StoreSetCookie:
		return at("settles", "the service chooses the header fields that it settles with; remove keep_headers, drop_headers and store_set_cookie")
	}
	return nil
}

// settleable returns an error if a route's service cannot settle in the store.
func (c *Config) settleable(s store.Store) error {
	if _, ok := store.As[store.OutsideStore](s); ok {
		return nil
	}
	for i, r := range c.Routes {
		if r.Settles == settlesService {
			return c.place(at("settles", "a service settles by the SQL functions of PostgreSQL, and the store is another one"), "routes", i)
		}
	}
	return nil
}

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
				log.Warn("proxy: an operation has no reference: the value of its header is too long or not printable", slog.String("route", r.class()), slog.Int("bytes", len(ref)))
				return ""
			}
			return ref
		}
	}
	return nil
}
