package proxy

import (
	"github.com/stet-go/stet/store"
)

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
