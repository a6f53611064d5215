package proxy

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocumentedProblemsAreTheProblems compares docs/problems.md with the
// conditions here.
func TestDocumentedProblemsAreTheProblems(t *testing.T) {
	docs, err := os.ReadFile("../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	conditions := []condition{keyHopByHop, headerMisspelled, methodMisspelled, methodInvalid, methodOverridden, targetInvalid, unrouted, busy, closing, upstreamUnreachable, upstreamFailed, authorizationUnavailable, tooManyOperations, tooLargeToAccept}
	for _, c := range conditions {
		retryable := "retryable"
		if !c.retryable {
			retryable = "not retryable"
		}
		if want := fmt.Sprintf("\n### %s\n\n%d, %s, %v.", c.name, c.status, retryable, c.execution); !strings.Contains(string(docs), want) {
			t.Errorf("docs/problems.md does not have %q", want)
		}
	}
	if n := strings.Count(string(docs), "\n### "); n != len(conditions) {
		t.Errorf("docs/problems.md has %d problems of the proxy, and there are %d", n, len(conditions))
	}
}
