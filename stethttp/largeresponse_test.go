package stethttp_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
	"github.com/stet-go/stet/store/memory"
)

// reader is the http.ResponseWriter of a client that has a copy of its content.
type reader struct {
	tally
	got bytes.Buffer
}

func (w *reader) Write(p []byte) (int, error) {
	w.got.Write(p)
	return w.tally.Write(p)
}

// large sends a request to h.
func large(h http.Handler, key string) *reader {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	w := &reader{tally: tally{header: make(http.Header)}}
	h.ServeHTTP(w, r)
	return w
}

// ways are those of a handler to write large content.
var ways = map[string]func(http.ResponseWriter, []byte){
	"at once": func(w http.ResponseWriter, content []byte) { _, _ = w.Write(content) },
	"a little, and the rest at once": func(w http.ResponseWriter, content []byte) {
		_, _ = w.Write(content[:100])
		_, _ = w.Write(content[100:])
	},
	"in pieces": inPieces,
	"in pieces of a length that is known": func(w http.ResponseWriter, content []byte) {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		inPieces(w, content)
	},
}

func inPieces(w http.ResponseWriter, content []byte) {
	w.WriteHeader(http.StatusCreated)
	for size := 32 << 10; len(content) > 0; content = content[min(size, len(content)):] {
		_, _ = w.Write(content[:min(size, len(content))])
	}
}

// The handler overwrites its memory after it has written the response.
func TestLargeResponseIsNotTheHandlersMemory(t *testing.T) {
	for name, write := range ways {
		for _, o := range []stet.Options{{}, {Policy: stet.Policy{MaxResult: 300 << 10}},
			{Encryption: stet.Encryption{Keys: []stet.EncryptionKey{{Name: "k", Secret: make([]byte, 32)}}}}} {
			t.Run(fmt.Sprintf("%s/%d/%d", name, o.Policy.MaxResult, len(o.Encryption.Keys)), func(t *testing.T) {
				h := guardedBy(t, o, write)
				sizes := []int{64<<10 - 1, 64 << 10, 64<<10 + 1, 200 << 10, 256 << 10, 256<<10 + 1, 299 << 10, 300 << 10, 400 << 10, 930 << 10, 1 << 20, 1<<20 + 1, 3 << 20}
				for round := range 2 {
					for _, size := range sizes {
						w := large(h, strconv.Itoa(size))
						replayed := w.header.Get("Idempotent-Replayed") == "true"
						switch {
						case round > 0 && !replayed && w.status != http.StatusGone:
							t.Errorf("a retry for %d bytes has the status %d, and is no replay", size, w.status)
						case (round == 0 || replayed) && !bytes.Equal(w.got.Bytes(), bytes.Repeat([]byte{byte(size) | 1}, size)):
							t.Errorf("replayed %v: %d bytes of %d, of which some are another's", replayed, w.got.Len(), size)
						}
					}
				}
			})
		}
	}
}

// guardedBy returns a handler that answers with as many bytes as its key says.
func guardedBy(t *testing.T, o stet.Options, write func(http.ResponseWriter, []byte)) http.Handler {
	t.Helper()
	engine := stettest.Engine(t, memory.New(memory.Options{}), o)
	return stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stethttp.SingleTenant})).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.Header.Get("Idempotency-Key"))
		content := bytes.Repeat([]byte{byte(size) | 1}, size)
		write(w, content)
		clear(content)
	}))
}
