package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stet-go/stet/internal/proxy"
	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store/memory"
)

// TestAnswersOfAService runs the cases of a file: its first lines explain them.
func TestAnswersOfAService(t *testing.T) {
	stettest.Cases(t, "testdata/answers.txt", func(t *testing.T, input string) string {
		fields := map[string]string{}
		for line := range strings.Lines(input) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			fields[name] = value
		}
		answers, n := strings.Split(fields["service"], ", "), atomic.Int32{}
		s := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
			answer := fields["verify"]
			if r.Method == http.MethodPost {
				answer = answers[min(int(n.Add(1)), len(answers))-1]
			}
			respond(w, r, answer)
		})
		yaml := "upstream: {url: " + s.URL + "}\nscope: single-tenant\nroutes: [{path: /payments, " + fields["route"] + "}]\n"
		f := startAsync(t, memory.New(memory.Options{}), yaml)
		var replies []string
		for tries := 10; len(replies) < 2 && tries > 0; tries-- {
			r := f.outcome("k", "{}")
			if r.header.Get(proxy.HeaderExecution) != "" {
				t.Errorf("the client gets %v", r.header)
			}
			if r.status != http.StatusAccepted {
				reply := strings.TrimSpace(fmt.Sprint(r.status, " ", r.problem()))
				if r.replayed() {
					reply += " replayed"
				}
				replies = append(replies, reply)
			}
		}
		return fmt.Sprintf("%s; %d calls; %v", strings.Join(replies, ", "), s.count("k"), f.state("k"))
	})
}

// respond gives an answer in words.
func respond(w http.ResponseWriter, r *http.Request, answer string) {
	for _, word := range strings.Fields(answer) {
		status, _ := strconv.Atoi(word)
		name, value, _ := strings.Cut(word, "=")
		switch {
		case word == "closes":
			_ = conn(r).Close()
		case word == "silent":
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the proxy has left
			<-r.Context().Done()
		case word == "echo":
			w.Header().Set(proxy.HeaderOperation, r.Header.Get(proxy.HeaderOperation))
		case status > 0:
			defer w.WriteHeader(status)
		default:
			w.Header().Set(name, value)
		}
	}
}
