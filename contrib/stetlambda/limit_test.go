package stetlambda_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/contrib/stetlambda"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/stethttp"
)

func TestRequestThatBeginsWithoutTimeIsNotExecuted(t *testing.T) {
	var runs atomic.Int64
	f := payments(t, &runs)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	out, err := f(ctx, read[events.APIGatewayV2HTTPRequest](t, "api.json"))
	if err != nil || out.StatusCode != 503 || out.Headers["Retry-After"] == "" || !strings.Contains(out.Body, "#request-ended") || !strings.Contains(out.Body, `"execution":"not executed"`) || runs.Load() != 0 {
		t.Errorf("%+v, %v; %d runs", out, err, runs.Load())
	}
	if out, err := f(t.Context(), read[events.APIGatewayV2HTTPRequest](t, "api.json")); err != nil || out.StatusCode != 201 || runs.Load() != 1 {
		t.Errorf("a retry: %+v, %v; %d runs", out, err, runs.Load())
	}
}

// The time for which an operation counts as in progress is the policy's lease (1 s here), whatever
// the function's limit is. It is renewed while the run continues.
func TestRunOfAFunctionThatIsCutIsInProgressForItsLease(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stet.db")
	s := newService(t, func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "STETLAMBDA_STORE="+file, "STETLAMBDA_HTTP=1")
		return cmd
	})
	e := read[events.APIGatewayV2HTTPRequest](t, "api.json")
	if a, ok := s.invoke(3*time.Second, e); ok {
		t.Fatalf("the function has answered: %s", a.body)
	}
	stettest.Eventually(t, "the outcome to be unknown", func() bool {
		a, ok := s.invoke(20*time.Second, e)
		var got events.APIGatewayV2HTTPResponse
		if err := json.Unmarshal(a.body, &got); err != nil || !ok || a.failed {
			t.Fatalf("%v %s %v\n%s", ok, a.body, err, s.log.String())
		}
		switch {
		case got.StatusCode == 409 && strings.Contains(got.Body, "#in-flight"):
			return false
		case got.StatusCode != 504 || !strings.Contains(got.Body, "#outcome-unknown"):
			t.Fatalf("%+v", got)
		}
		return true
	})
	if runs, err := os.ReadFile(file + ".runs"); err != nil || string(runs) != "run\n" {
		t.Errorf("%q, %v", runs, err)
	}
}

// hanging is a function for HTTP whose handler notes each run in a file, and does not return.
func hanging(engine *stet.Engine, file string) stetlambda.HTTPHandler {
	m := stethttp.Must(stethttp.New(engine, stethttp.Options{Scope: stetlambda.Claim("sub")}))
	return stetlambda.HTTP(m.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString("run\n")
		}
		if err != nil {
			panic(err)
		}
		select {}
	})))
}
