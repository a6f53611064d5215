package proxy

import (
	"net/http"
	"slices"

	"github.com/stet-go/stet/stethttp"
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

// judge sets which responses are stored.
func (r *Route) judge(o *stethttp.Options) error {
	if o.Responses = r.responses(); o.Responses != stethttp.StoreAll {
		o.NotExecuted = r.notExecuted
	}
	return r.checkResponses()
}

// checkResponses returns an error if a field contradicts Route.Responses.
func (r *Route) checkResponses() error {
	switch {
	case r.responses() == stethttp.StoreOutcomes:
	case r.Settles == settlesService:
		return at("responses", "with settles: service the service says what is stored; leave it out")
	case r.Async != nil:
		return at("responses", "what the service answers to an accepted operation is an outcome, or the operation is sent again, as its client can correct nothing; leave it out")
	case r.MCP != nil:
		return at("responses", "the result of a tool says what happened, and not the status; leave it out")
	case r.responses() == stethttp.StoreAll && len(r.NotExecuted) > 0:
		return at("not_executed", "with responses: store-all every response is stored; leave out one of them")
	}
	return nil
}
