package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	module       = "github.com/stet-go/stet"
	maxFileLines = 500
	maxFuncLines = 70
)

type file struct {
	path string // from the module's root, with slashes
	set  *token.FileSet
	ast  *ast.File
}

func (f file) test() bool { return strings.HasSuffix(f.path, "_test.go") }

func (f file) imports() (paths []string) {
	for _, spec := range f.ast.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

func files(t *testing.T) []file {
	t.Helper()
	all, err := parsed()
	if err != nil || len(all) < 10 {
		t.Fatalf("found %d files: %v", len(all), err)
	}
	return all
}

var parsed = sync.OnceValues(func() (all []file, err error) {
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		all = append(all, file{filepath.ToSlash(rel), set, parsed})
		return err
	})
	return all, err
})

func TestFilesAndFunctionsAreShort(t *testing.T) {
	for _, f := range files(t) {
		if n := f.set.File(f.ast.FileStart).LineCount(); n > maxFileLines {
			t.Errorf("%s has %d lines; at most %d", f.path, n, maxFileLines)
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := f.set.Position(fn.End()).Line - f.set.Position(fn.Pos()).Line + 1
			if n > maxFuncLines {
				t.Errorf("%s: %s has %d lines; at most %d", f.path, fn.Name.Name, n, maxFuncLines)
			}
		}
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, f := range files(t) {
		if f.test() || strings.Contains(f.path, "internal/") || strings.HasPrefix(f.path, "cmd/") ||
			strings.HasPrefix(f.path, "proof/") || strings.HasPrefix(f.path, "bench/") || strings.HasPrefix(f.path, "examples/") {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || ast.IsExported(receiver(d))) {
					t.Errorf("%s: %s is not documented", f.path, d.Name.Name)
				}
			case *ast.GenDecl:
				undocumented(t, f.path, d)
			}
		}
	}
}

func undocumented(t *testing.T, path string, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
				t.Errorf("%s: %s is not documented", path, s.Name.Name)
			}
		case *ast.ValueSpec:
			for _, n := range s.Names {
				if n.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					t.Errorf("%s: %s is not documented", path, n.Name)
				}
			}
		}
	}
}
