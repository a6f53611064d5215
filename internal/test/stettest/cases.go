package stettest

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stet-go/stet"
)

// Update is the test flag -update: tests write their tables in testdata anew. Read the
// difference before you commit it.
var Update = flag.Bool("update", false, "write the tables in testdata anew")

// Cases runs the cases of a file, in their order, and compares their results. A case is a
// line "-- NAME", the input, and the result. Each line of the result begins with "=> ".
func Cases(t *testing.T, file string, run func(t *testing.T, input string) string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := split(string(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for i, c := range cases[1:] {
		name, body, _ := strings.Cut(c, "\n")
		body, want, _ := strings.Cut("\n"+body, "\n=> ")
		input, want := strings.Trim(body, "\n")+"\n", strings.TrimSpace("=> "+want)
		if input == "\n" {
			input = ""
		}
		t.Run(name, func(t *testing.T) {
			got := "=> " + strings.ReplaceAll(strings.TrimSpace(run(t, input)), "\n", "\n=> ")
			if got != want && !*Update {
				t.Errorf("%s:\n%sgot\n%s\nwant\n%s", file, input, got, want)
			}
			cases[i+1] = name + "\n" + input + got + "\n"
		})
	}
	if *Update {
		if err := os.WriteFile(file, []byte(strings.Join(cases, "\n-- ")[1:]), 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
}

// split returns the text before the first case, and the cases.
func split(text string) ([]string, error) {
	cases := strings.Split("\n"+text, "\n-- ")
	if n := len(cases) - 1; n < 2 {
		return nil, fmt.Errorf("%d cases; a table has at least 2, and each begins with a line \"-- NAME\"", n)
	}
	return cases, nil
}

// Options runs the cases of a file, whose inputs are options as JSON with durations in
// nanoseconds. try returns the error of a constructor, which must be of KindInvalid.
func Options[O any](t *testing.T, file string, try func(O) error) {
	t.Helper()
	Cases(t, file, func(t *testing.T, input string) string {
		var o O
		d := json.NewDecoder(strings.NewReader(input))
		d.DisallowUnknownFields()
		if err := d.Decode(&o); err != nil {
			t.Fatal(err)
		}
		err := try(o)
		if err == nil {
			return "accepted"
		}
		if stet.KindOf(err) != stet.KindInvalid || stet.ExecutionOf(err) != stet.NotExecuted {
			t.Errorf("%v is %v, %v; want an invalid argument", err, stet.KindOf(err), stet.ExecutionOf(err))
		}
		return err.Error()
	})
}
