package stethttp_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestKeyedRequestThatPassesUnprotectedIsLoggedOnce(t *testing.T) {
	runs := 0
	s := start(t, setup{handler: func(w http.ResponseWriter, _ *http.Request) { runs++; w.WriteHeader(http.StatusNoContent) }})
	for range 2 {
		for _, method := range []string{"PUT", "DELETE"} {
			s.do(s.request(method, "/payments", "secret-key", "{}"))
		}
	}
	log := s.log.String()
	if runs != 4 || strings.Count(log, "passed unprotected") != 1 || !strings.Contains(log, "method=PUT") || strings.Contains(log, "secret-key") {
		t.Errorf("%d runs, and the log has %s", runs, log)
	}
}
