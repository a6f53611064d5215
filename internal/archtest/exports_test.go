package archtest

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the lists of exported names anew")

// maxRoot is what the root may export, methods and constants counted, in version 1.
const maxRoot = 112

// TestExportedNamesAreListed compares the exported names of each public package with
// testdata/exports, so that a change of them is seen in review.
func TestExportedNamesAreListed(t *testing.T) {
	names := make(map[string]map[string]bool)
	for _, f := range files(t) {
		p := f.pkg()
		if f.test() || other(p) != "" || f.ast.Name.Name == "main" || strings.Contains("/"+p+"/", "/internal/") {
			continue
		}
		if names[p] == nil {
			names[p] = make(map[string]bool)
		}
		for _, d := range f.ast.Decls {
			for _, name := range exported(d) {
				names[p][name] = true
			}
		}
	}
	dir := filepath.Join("testdata", "exports")
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	for p, list := range names {
		golden := filepath.Join(dir, strings.ReplaceAll(p, "/", "_")+".txt")
		want := fmt.Appendf(nil, "%d\n%s\n", len(list), strings.Join(slices.Sorted(maps.Keys(list)), "\n"))
		if *update {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(golden)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s does not list what package %s exports (%v); if the change is meant: go test ./internal/archtest -update\n%s", golden, p, err, difference(got, list))
		}
	}
	if lists, err := filepath.Glob(filepath.Join(dir, "*.txt")); err != nil || len(lists) != len(names) {
		t.Errorf("%s has %d lists for %d packages (%v); go test ./internal/archtest -update", dir, len(lists), len(names), err)
	}
	if n := len(names["stet"]); n > maxRoot {
		t.Errorf("the root package exports %d names; at most %d, so that a reader can know them all: find a shape that needs fewer", n, maxRoot)
	}
}

// difference tells what a list lacks and has too much.
func difference(listed []byte, names map[string]bool) string {
	var b strings.Builder
	old := make(map[string]bool)
	for i, line := range strings.Split(strings.TrimSpace(string(listed)), "\n") {
		if old[line] = true; i > 0 && !names[line] {
			fmt.Fprintf(&b, "- %s\n", line)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !old[name] {
			fmt.Fprintf(&b, "+ %s\n", name)
		}
	}
	return b.String()
}

// exported returns the exported names of a declaration: functions, types, methods of
// exported types and interfaces, constants and variables; not fields.
func exported(d ast.Decl) (names []string) {
	add := func(kind, prefix string, id *ast.Ident) {
		if id.IsExported() {
			names = append(names, kind+" "+prefix+id.Name)
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if of := receiver(d); of == "" {
			add("func", "", d.Name)
		} else if ast.IsExported(of) {
			add("method", of+".", d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				add("type", "", s.Name)
				if it, ok := s.Type.(*ast.InterfaceType); ok && s.Name.IsExported() {
					for _, m := range it.Methods.List {
						for _, id := range m.Names {
							add("method", s.Name.Name+".", id)
						}
					}
				}
			case *ast.ValueSpec:
				for _, id := range s.Names {
					add(d.Tok.String(), "", id)
				}
			}
		}
	}
	return names
}

// receiver returns the name of a method's type, "" of a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
