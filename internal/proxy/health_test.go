package proxy_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
)

// unswept is a store whose sweeps fail.
type unswept struct{ *memory.Store }

func (unswept) Sweep(context.Context, int) (store.Swept, error) {
	return store.Swept{}, errors.New("disk of host-7 is full")
}

func TestReadiness_Verbose_HasStoreSweepAndWorkers(t *testing.T) {
	for _, tc := range []struct {
		store store.Store
		want  string
	}{
		{memory.New(memory.Options{}), `^ready\nstore: it answers\nsweep: succeeded \d+s ago\n`},
		{unswept{memory.New(memory.Options{})}, `^ready\nstore: it answers\nsweep: the last one failed; none has ended yet\n`},
	} {
		c, err := proxy.Parse("stet.yaml", strings.NewReader("upstream: {url: 'http://127.0.0.1:1'}\nscope: single-tenant\nstore: {url: memory, sweep_every: 10ms}\nroutes: [{path: /orders, name: orders, async: {}}]\n"), env(nil))
		if err != nil {
			t.Fatal(err)
		}
		p, err := proxy.New(tc.store, c, proxy.Options{Parts: proxy.Workers, ErrorLog: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		a := proxy.NewAdmin(p, nil)
		var got string
		stettest.Eventually(t, "the first sweep and the start of the worker", func() bool {
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequest("GET", "/readyz?verbose", nil))
			got = w.Body.String()
			return w.Code == 200 && !strings.Contains(got, "sweep: none") && strings.Contains(got, "worker of orders")
		})
		if !regexp.MustCompile(tc.want).MatchString(got) || !strings.Contains(got, "\nworker of orders: it runs\n") || strings.Contains(got, "host-7") {
			t.Errorf("got %s; want %s", got, tc.want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
