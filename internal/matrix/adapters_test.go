package matrix

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/stettest"
)

const (
	facesPage  = "../../docs/adapters.md"
	facesBegin = "<!-- written by go test ./internal/matrix -update -->\n"
	facesEnd   = "<!-- until here -->\n"
)

// adapterRows are the outcomes of docs/adapters.md, in this order, with their names there.
var adapterRows = [][2]string{
	{"http 200 json", "HTTP: 200, the JSON `\"one\"`"},
	{"http 200 text", "HTTP: 200, the text `one`"},
	{"http 204", "HTTP: 204"},
	{"http 402", "HTTP: 402, refused"},
	{"http 500", "HTTP: 500, failed"},
	{"do value", "`Do`, a worker: the string `one`"},
	{"do protobuf", "`Do` with `codec/protobuf`: a `StringValue`"},
	{"do another message", "the same, another message"},
	{"do gob", "`Do` with `codec.Gob`"},
	{"do error", "`Do`, a worker: the error `boom`"},
	{"message json", "message: the result `\"one\"`"},
	{"message text", "message: the result `one`"},
	{"message nothing", "message: no result"},
	{"message failed", "message: the error `boom`"},
	{"grpc reply", "gRPC: a `StringValue`"},
	{"grpc empty reply", "gRPC: an `Empty`"},
	{"grpc not found", "gRPC: `NOT_FOUND`"},
	{"grpc unavailable", "gRPC: `UNAVAILABLE`"},
	{"sql 200 json", "SQL: 200, the JSON `\"one\"`"},
	{"sql nothing", "SQL: nothing beside the state"},
	{"sql 402", "SQL: 402, refused"},
	{"sql failed", "SQL: failed, 500"},
	{"do panic", "any: panicked"},
	{"stet: Policy.Stale", "any: died, and `Policy.Stale` says failed"},
	{"cancelled before it ran", "accepted: cancelled before it ran"},
	{"operator: completed, no response", "any: completed, the result gone"},
}

var plainly = strings.NewReplacer("ack: replayed", "acknowledged", "dead-letter: failed", "dead-lettered",
	"the outcome has the status", "status", "run took longer than its policy allows", "timed out")

var facesColumns = []string{"http", "do", "do protobuf", "grpc", "message"}

// facesTable compares the table in docs/adapters.md with the rows of reading.txt.
func facesTable(t *testing.T, rows [][]string) {
	t.Helper()
	cell := func(writer, reader string) string {
		i := slices.IndexFunc(rows, func(r []string) bool { return r[0] == writer && r[1] == "plain" && r[3] == reader })
		if i < 0 {
			t.Fatalf("reading.txt has no row of %q for %q", writer, reader)
		}
		return strings.ReplaceAll(strings.TrimSuffix(plainly.Replace(rows[i][4]), " replayed"), "|", `\|`)
	}
	var b strings.Builder
	b.WriteString(facesBegin)
	b.WriteString("| stored outcome | HTTP | `Do[string]` | `Do[*StringValue]`, codec/protobuf | gRPC, Connect | a consumer |\n|---|---|---|---|---|---|\n")
	for _, row := range adapterRows {
		b.WriteString("| " + row[1])
		for _, reader := range facesColumns {
			b.WriteString(" | " + cell(row[0], reader))
		}
		b.WriteString(" |\n")
	}
	b.WriteString(facesEnd)
	page, err := os.ReadFile(facesPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(page), facesBegin)
	_, after, ended := strings.Cut(rest, facesEnd)
	if !begun || !ended {
		t.Fatalf("%s has no place for the table", facesPage)
	}
	want := before + b.String() + after
	switch {
	case want == string(page):
	case *stettest.Update:
		if err := os.WriteFile(facesPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table in %s is not what the adapters do; go test ./internal/matrix -update writes it", facesPage)
	}
}
