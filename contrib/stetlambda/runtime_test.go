package stetlambda_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/postgres"
	"github.com/stet-go/stet/store/sqlite"
)

func TestMain(m *testing.M) {
	if file := os.Getenv("STETLAMBDA_STORE"); file != "" {
		function(file)
		return
	}
	goleak.VerifyTestMain(rig.Main(m))
}

// function is a Lambda whose handler notes each run in a file, and hangs if the message says so.
func function(file string) {
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	st, err := sqlite.Open(context.Background(), file, sqlite.Options{})
	check(err)
	engine, err := stet.New(st, stet.Options{Policy: stet.Policy{Lease: time.Second}})
	check(err)
	if os.Getenv("STETLAMBDA_HTTP") != "" {
		lambda.Start(hanging(engine, file+".runs"))
		return
	}
	handler, err := stetlambda.SQS(engine, options(), func(_ context.Context, m events.SQSMessage) ([]byte, error) {
		f, err := os.OpenFile(file+".runs", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		check(err)
		_, err = fmt.Fprintln(f, *m.MessageAttributes["order-id"].StringValue)
		check(err)
		if m.Body == "hangs" {
			select {}
		}
		return nil, f.Close()
	})
	check(err)
	lambda.Start(handler)
}

// service is Lambda: its runtime API, and a process that it begins, freezes and kills.
type service struct {
	testing.TB
	command func() *exec.Cmd
	url     string
	next    chan invocation
	answers chan answer
	process *exec.Cmd
	log     stettest.Log
}

type invocation struct {
	id      int
	timeout time.Duration
	payload []byte
}

type answer struct {
	failed bool // the function returned an error
	body   []byte
}

func newService(t testing.TB, command func() *exec.Cmd) *service {
	s := &service{TB: t, command: command, next: make(chan invocation), answers: make(chan answer, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, r *http.Request) {
		select {
		case in := <-s.next:
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", fmt.Sprint(in.id))
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(in.timeout).UnixMilli()))
			w.Header().Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:f")
			_, _ = w.Write(in.payload)
		case <-r.Context().Done():
		}
	})
	end := func(failed bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			s.answers <- answer{failed, body}
			w.WriteHeader(http.StatusAccepted)
		}
	}
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", end(false))
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", end(true))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(s.kill)
	s.url = strings.TrimPrefix(server.URL, "http://")
	return s
}

// invoke has the function deal with an event. A function that does not answer in time is
// killed, and answers nothing.
func (s *service) invoke(timeout time.Duration, event any) (a answer, ok bool) {
	s.Helper()
	payload, err := json.Marshal(event)
	if err != nil {
		s.Fatal(err)
	}
	if s.process == nil {
		cmd := s.command()
		cmd.Env = append(cmd.Env, "AWS_LAMBDA_RUNTIME_API="+s.url, "AWS_LAMBDA_FUNCTION_NAME=f", "_LAMBDA_SERVER_PORT=")
		cmd.Stderr = &s.log
		if err := cmd.Start(); err != nil {
			s.Fatal(err)
		}
		s.process = cmd
	}
	select {
	case s.next <- invocation{1, timeout, payload}:
	case <-time.After(60 * time.Second):
		s.Fatalf("the function asks for nothing; it says:\n%s", s.log.String())
	}
	select {
	case a := <-s.answers:
		return a, true
	case <-time.After(timeout):
		s.kill()
		return a, false
	}
}

func (s *service) kill() {
	if s.process != nil {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
		s.process = nil
	}
}

func TestMessagesOfAFunctionThatIsKilledRunOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stet.db")
	s := newService(t, func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "STETLAMBDA_STORE="+file)
		return cmd
	})
	e := batchOf(t, "1", "2", "3")
	e.Records[1].Body = "hangs"
	if _, ok := s.invoke(3*time.Second, e); ok {
		t.Fatal("the function has responded")
	}
	// All messages come again, to another process. Handled messages do not run again. The
	// outcome of the message in whose run the process was killed is unknown.
	for range 2 {
		a, ok := s.invoke(20*time.Second, e)
		if !ok || a.failed || string(a.body) != `{"batchItemFailures":[{"itemIdentifier":"id of 2"}]}` {
			t.Errorf("%v %s", ok, a.body)
		}
		s.kill() // the outcome is durable before the function has answered
	}
	runs, err := os.ReadFile(file + ".runs")
	if err != nil || len(bytes.Fields(runs)) != 3 {
		t.Errorf("%s, %v", runs, err)
	}
}

// TestProgramOfThePageRunsInLambda builds the program of docs/adapters/lambda.md.
func TestProgramOfThePageRunsInLambda(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "adapters", "lambda.md"))
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindSubmatch(page)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), program[1], 0o600); err != nil {
		t.Fatal(err)
	}
	rig.Run(t, ".", nil, "go", "build", "-o", filepath.Join(dir, "function"), filepath.Join(dir, "main.go"))
	url := rig.Postgres(t).Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := postgres.Migrate(t.Context(), pool, postgres.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), "CREATE TABLE payments (id serial)"); err != nil {
		t.Fatal(err)
	}
	s := newService(t, func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(dir, "function"))
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
		return cmd
	})
	for i := range 4 {
		if i == 2 {
			s.kill()
		}
		a, ok := s.invoke(30*time.Second, read[events.APIGatewayV2HTTPRequest](t, "api.json"))
		var got events.APIGatewayV2HTTPResponse
		if err := json.Unmarshal(a.body, &got); !ok || a.failed || err != nil || got.StatusCode != 201 || got.Body != "payment 1\n" {
			t.Fatalf("%d: %v %s\n%s", i, ok, a.body, s.log.String())
		}
	}
	var count int64
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM payments").Scan(&count); err != nil || count != 1 {
		t.Errorf("%d payments, %v", count, err)
	}
}
