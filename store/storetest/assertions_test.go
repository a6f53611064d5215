package storetest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// failed are the places in the suite at which it has called a broken store broken.
var failedAt struct {
	mu    sync.Mutex
	lines map[string]bool // "file:line", of all callers within the suite
}

// noteFailure notes where the suite is.
func noteFailure() {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	failedAt.mu.Lock()
	defer failedAt.mu.Unlock()
	if failedAt.lines == nil {
		failedAt.lines = make(map[string]bool)
	}
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		failedAt.lines[fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)] = true
	}
}

// assertion is a place in the suite at which it can call a store broken.
type assertion struct {
	file     string
	from, to int
	name     string // the function, the called assertion and its text
}

// requires are the functions of the suite that fail a test, of which each call is an
// assertion of its own.
var requires = map[string]bool{"fenced": true, "is": true, "unchanged": true, "untouched": true, "bare": true, "isDue": true, "sends": true,
	"rows": true, "unreadable": true, "cannotBeTaken": true, "isRepeated": true, "ran": true, "replays": true, "markedUnknown": true, "stands": true,
	"shows": true, "woken": true, "eitherOr": true}

// assertions are all of them, but for those about a wrong harness.
func assertions(t *testing.T) (all []assertion) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") || e.Name() == "late.go" || e.Name() == "storetest.go" {
			continue
		}
		file, err := parser.ParseFile(fset, e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if what := asserts(call); what != "" {
						all = append(all, assertion{e.Name(), fset.Position(call.Pos()).Line, fset.Position(call.End()).Line, fn.Name.Name + ": " + what})
					}
				}
				return true
			})
		}
	}
	return all
}

// asserts says what a call requires; "" if it is no assertion.
func asserts(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return ""
	}
	if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "fmt" || x.Name == "errors" || x.Name == "rapid") {
		return ""
	}
	text := ""
	ast.Inspect(call.Args[0], func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok {
			text += strings.Trim(lit.Value, `"`)
		}
		return true
	})
	switch name := sel.Sel.Name; {
	case name == "Error" || name == "Errorf" || name == "Fatal" || name == "Fatalf":
		return text
	case requires[name]:
		return name + " " + text
	}
	return ""
}

// unreached returns the names of the assertions at which no store has failed.
func unreached(t *testing.T) map[string]string {
	t.Helper()
	failedAt.mu.Lock()
	defer failedAt.mu.Unlock()
	names := make(map[string]string)
	for _, a := range assertions(t) {
		reached := false
		for line := a.from; line <= a.to; line++ {
			reached = reached || failedAt.lines[fmt.Sprintf("%s:%d", a.file, line)]
		}
		if !reached {
			names[a.name] = fmt.Sprintf("%s:%d", a.file, a.from)
		}
	}
	return names
}
