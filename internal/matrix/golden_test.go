package matrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
)

// golden compares a table, whose columns have these widths, with the one in testdata.
// Widths are fixed, so that a change of a cell is a change of one line.
func golden(t *testing.T, name, head string, width []int, rows [][]string) {
	t.Helper()
	lines := make([]string, len(rows))
	for i, row := range rows {
		for j, cell := range row {
			lines[i] += fmt.Sprintf("%-*s  ", width[j], cell)
		}
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	slices.Sort(lines)
	got := head + strings.Join(lines, "\n") + "\n"
	path := filepath.Join("testdata", name)
	if *stettest.Update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	missing := strings.Split(string(want), "\n")
	for _, line := range strings.Split(got, "\n") {
		if i := slices.Index(missing, line); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
			continue
		}
		t.Errorf("%s has not: %s", path, line)
	}
	for _, line := range missing {
		t.Errorf("%s has: %s", path, line)
	}
}

// ended calls f, and says how it ended; "" if it returned.
func ended(f func()) (how string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		how = "the goroutine ends"
		defer func() {
			if v := recover(); v != nil {
				how = "the panic continues"
			}
		}()
		f()
		how = ""
	}()
	<-done
	return how
}

// kinds are the words for the kinds of errors.
var kinds = map[stet.Kind]string{stet.KindInvalid: "invalid", stet.KindMismatch: "mismatch", stet.KindInFlight: "in flight", stet.KindUnknown: "unknown",
	stet.KindExpired: "expired", stet.KindForeign: "foreign", stet.KindRetryable: "retryable", stet.KindFailed: "failed", stet.KindStore: "store",
	stet.KindFenced: "fenced", stet.KindDamaged: "damaged", stet.KindClosed: "closed"}

// said is an error in words.
func said(err error) string {
	own, ok := errors.AsType[*stet.Error](err)
	if !ok {
		return "error: " + err.Error()
	}
	text := fmt.Sprintf("%s (%v)", kinds[own.Kind], own.Execution)
	if own.Kind == stet.KindFailed && own.Cause != nil {
		text += ": " + strings.TrimPrefix(own.Cause.Error(), "stet: ")
	}
	return text
}

// response is a response in words; how says how its handler ended.
func response(w *httptest.ResponseRecorder, how string) string {
	body := strings.TrimSpace(w.Body.String())
	if how != "" {
		if body == "" && !w.Flushed {
			return "connection cut"
		}
		return fmt.Sprintf("connection cut after %d %s", w.Code, body)
	}
	text := strings.TrimSpace(fmt.Sprintf("%d %s", w.Code, body))
	if strings.HasPrefix(w.Header().Get("Content-Type"), "application/problem+json") {
		var p struct{ Type, Execution string }
		if err := json.Unmarshal([]byte(body), &p); err != nil {
			return "a problem that is none: " + body
		}
		text = fmt.Sprintf("%d %s", w.Code, p.Type[strings.LastIndexAny(p.Type, "#/")+1:])
		if p.Execution != "" {
			text += " (" + p.Execution + ")"
		}
	}
	if w.Header().Get("Retry-After") != "" {
		text += " +retry-after"
	}
	if w.Header().Get("Idempotent-Replayed") != "" {
		text += " replayed"
	}
	return text
}
