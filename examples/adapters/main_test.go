package main

import (
	"bytes"
	"context"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m).Run()) }

// lines passes on what the program logs, line by line.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(bytes.TrimSpace(p))
	return len(p), nil
}

func TestOrderIsBookedOnceHoweverItComes(t *testing.T) {
	said := make(lines, 100)
	log.SetOutput(said)
	log.SetFlags(0)
	defer log.SetOutput(os.Stderr)
	url := rig.RabbitMQ(t).URL()
	ctx, stop := context.WithCancel(t.Context())
	handlers, ended := make(chan http.Handler, 1), make(chan error, 1)
	conn, err := amqp091.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(t.Name(), true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	go func() {
		ended <- run(ctx, url, t.Name(), filepath.Join(t.TempDir(), "shop.db"), func(h http.Handler) { handlers <- h })
	}()
	h := <-handlers
	post := func(key string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"book": 7, "copies": 1}`))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	publish := func(key, want string) {
		t.Helper()
		err := ch.PublishWithContext(ctx, "", t.Name(), false, false, amqp091.Publishing{Headers: amqp091.Table{"Idempotency-Key": key}, Body: []byte(`{"copies":1,"book":7}`)})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case line := <-said:
			if line != want {
				t.Errorf("%q; want %q", line, want)
			}
		case <-time.After(time.Minute):
			t.Fatal("nothing was decided")
		}
	}
	if status, body := post("a"); status != 201 || body != `{"booking":1}` {
		t.Errorf("%d %s", status, body)
	}
	publish("a", "message: ack, replayed")
	publish("b", "message: ack, handled")
	if status, body := post("b"); status != 200 || body != `{"booking":2}` {
		t.Errorf("%d %s", status, body)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestProgramIsThatOfThePage compares docs/adapters.md with main.go.
func TestProgramIsThatOfThePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "adapters.md"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, append(append([]byte("```go\n"), program...), "```\n"...)) {
		t.Error("docs/adapters.md has another program than main.go")
	}
}
