package proxy

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

// waiting is a store that has these accepted operations, of which all have waited for long.
type waiting struct {
	store.Browser
	records []store.Record
}

func (w waiting) Browse(context.Context, store.Query) (store.Page, error) {
	return store.Page{Records: w.records}, nil
}

// TestUnhandledWorkIsReported: once in a while, and only operations that no worker has begun.
func TestUnhandledWorkIsReported(t *testing.T) {
	begun := store.Record{Attempt: 1}
	begun.Label.Name = "begun"
	fresh := store.Record{}
	fresh.Label.Name = "fresh"
	here := store.Record{}
	here.Label.Name = "here"
	log := &stettest.Log{}
	u := &unhandledWork{store: waiting{records: []store.Record{begun, fresh, here, fresh}}, log: slog.New(slog.NewTextHandler(log, nil)), routes: map[string]bool{"begun": false, "fresh": false, "here": true}, reported: map[string]time.Time{}}
	u.scan(t.Context())
	u.scan(t.Context())
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "name=fresh") || !strings.Contains(text, "'stet worker' must run") {
		t.Errorf("the log: %s", text)
	}
}
