package stetconnect_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/stettest"
)

var page = filepath.Join("..", "docs", "adapters", "connect.md")

func TestProgramOfThePageIsTheExample(t *testing.T) {
	stettest.SameProgram(t, page, "example_test.go")
}

func TestThePackageCommentHasTheProgramOfThePage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	comment, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindSubmatch(text)
	if program == nil {
		t.Fatal("the page has no program")
	}
	var want strings.Builder
	for line := range strings.Lines(string(program[1])) {
		want.WriteString(strings.TrimSuffix("//\t"+line, "\t\n"))
		if line == "\n" {
			want.WriteByte('\n')
		}
	}
	if !strings.Contains(string(comment), want.String()) {
		t.Error("the package comment has another program")
	}
}

func TestEveryReasonIsInTheTableAndHasItsSection(t *testing.T) {
	source, err := os.ReadFile(filepath.Join("..", "internal", "rpc", "condition.go"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := os.ReadFile(filepath.Join("..", "docs", "problems.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string) // by reason
	for _, m := range regexp.MustCompile("(?m)^\\| (`[A-Z_`, ]+`) \\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		for reason := range strings.SplitSeq(strings.ReplaceAll(m[1], "`", ""), ", ") {
			rows[reason] = m[2]
		}
	}
	conditions := regexp.MustCompile(`Condition\{"([A-Z_]+)", code\.Code_([A-Z_]+),\s+"[^"]+", (true|false), stet\.(\w+)\}`).FindAllStringSubmatch(string(source), -1)
	if len(conditions) < 25 {
		t.Fatalf("understood %d conditions", len(conditions))
	}
	executed := map[string]string{"NotExecuted": "no", "Executed": "yes", "MayHaveExecuted": "maybe"}
	for _, c := range conditions {
		row, code := rows[c[1]], strings.Replace(strings.ToLower(c[2]), "cancelled", "canceled", 1)
		cells := strings.Split(row, " | ")
		if len(cells) != 3 || !strings.Contains(cells[0], "`"+code+"`") || !strings.Contains(cells[1], executed[c[4]]) || (cells[2] == "yes") != (c[3] == "true") {
			t.Errorf("the table says %q of %s", row, c[0])
		}
		if name := strings.ToLower(strings.ReplaceAll(c[1], "_", "-")); !regexp.MustCompile("(?m)^#+ " + name + "$").Match(problems) {
			t.Errorf("docs/problems.md has no section %s", name)
		}
	}
}
