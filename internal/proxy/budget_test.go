package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/sqlite"
)

// held counts the records of a store.
func held(t *testing.T, b store.Browser) int {
	t.Helper()
	page, err := b.Browse(t.Context(), store.Query{Limit: store.MaxBrowse})
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Records)
}

// A service that asks who it is after the proxy has claimed, as it must, turns
// invented credentials away. None of them may stay behind in the store.
func TestRefusedRequestLeavesNoRecord(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.Header.Get("X-Status"))
		w.WriteHeader(status)
	})
	f := startOn(t, store, yamlFor(s.URL, "http1", ""))
	for i, status := range []int{401, 403, 404, 405, 429} {
		for range 2 {
			if r := f.post("k", "{}", "Authorization", fmt.Sprintf("Bearer invented-%d", i), "X-Status", strconv.Itoa(status)); r.status != status || r.replayed() {
				t.Errorf("%d: %d %s", status, r.status, r.body)
			}
		}
	}
	stettest.Eventually(t, "a sweep to leave the store empty", func() bool {
		_, err := store.Sweep(t.Context(), 100)
		return err == nil && held(t, store) == 0
	})
	if r := f.post("k", "{}", "Authorization", "Bearer invented-0", "X-Status", "201"); r.status != 201 || s.last().Get("Stet-Attempt") != "1" || held(t, store) != 1 {
		t.Errorf("%d, attempt %s, %d records", r.status, s.last().Get("Stet-Attempt"), held(t, store))
	}
}

func TestNewRecordsAreBounded(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("X-Account"), "stranger") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "done")
	})
	f := start(t, yamlFor(s.URL, "http1", "scope: header:X-Account\nnew_records: {total: 3, per_scope: 2}\n"))
	for i := range 10 {
		if r := f.post("k", "{}", "X-Account", fmt.Sprint("stranger", i)); r.status != 401 {
			t.Fatalf("what leaves no record is counted: %d %s", r.status, r.body)
		}
	}
	for _, tc := range []struct {
		account, key string
		status       int
	}{{"a", "1", 200}, {"a", "2", 200}, {"a", "3", 429}, {"a", "1", 200}, {"b", "1", 200}, {"b", "2", 429}, {"c", "1", 429}, {"a", "2", 200}} {
		r := f.post(tc.key, "{}", "X-Account", tc.account)
		if r.status != tc.status {
			t.Errorf("%s %s: %d %s", tc.account, tc.key, r.status, r.body)
		}
		if tc.status != 429 {
			continue
		}
		after, err := strconv.Atoi(r.header.Get("Retry-After"))
		if r.problem() != "too-many-operations" || err != nil || after < 1 || after > 3600 {
			t.Errorf("%s, Retry-After %q", r.body, r.header.Get("Retry-After"))
		}
	}
	if n := s.count("3"); n != 0 {
		t.Errorf("a refused request was sent %d times", n)
	}
	if n := strings.Count(f.log.String(), "new_records is used up"); n != 1 {
		t.Errorf("%d lines in the log: %s", n, f.log)
	}
}
