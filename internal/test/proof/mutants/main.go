// Command mutants shows that the tests bite: it breaks the product in one place
// at a time, each a defect that idempotency layers really had, and requires that
// the tests fail. The tree itself is never touched: the Go command is given the
// changed file in place of the real one.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const patience = 8 * time.Minute // for the tests of one defect

func main() {
	only := flag.String("only", "", "try the defects whose name contains this")
	workers := flag.Int("workers", 2, "how many to try at a time")
	flag.Parse()
	if err := run(context.Background(), *only, max(*workers, 1)); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// resolution is what the tests say of a defect.
type result struct {
	caught bool
	by     string // the first test that failed
	took   time.Duration
	err    error // it could not be tried
}

func run(ctx context.Context, only string, workers int) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "stet-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()

	var chosen []defect
	for _, d := range all() {
		if strings.Contains(d.name, only) {
			chosen = append(chosen, d)
		}
	}
	results := make([]result, len(chosen))
	var wg sync.WaitGroup
	slots := make(chan struct{}, workers)
	for i, d := range chosen {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i] = d.try(ctx, root, filepath.Join(scratch, fmt.Sprint(i)))
			results[i].print(d)
		})
	}
	wg.Wait()
	caught := 0
	for _, v := range results {
		if v.caught {
			caught++
		}
	}
	fmt.Printf("figure: mutants_caught = %d of %d\n", caught, len(chosen))
	if caught < len(chosen) {
		return fmt.Errorf("%d of %d defects were not caught", len(chosen)-caught, len(chosen))
	}
	return nil
}

func (v result) print(d defect) {
	switch {
	case v.err != nil:
		fmt.Printf("ERROR     %-58s %v\n", d.name, v.err)
	case v.caught:
		fmt.Printf("caught    %-58s by %s (%v)\n", d.name, v.by, v.took.Round(100*time.Millisecond))
	default:
		fmt.Printf("SURVIVED  %-58s %s (%v)\n", d.name, strings.Join(d.tests, " "), v.took.Round(100*time.Millisecond))
	}
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/stet-go/stet").Output()
	if err != nil {
		return "", fmt.Errorf("run it inside of the module or of proof: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// broken returns the text of the file with the defect in it.
func (d defect) broken(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(d.file)))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), d.old); n != 1 {
		return "", fmt.Errorf("its text is in %s %d times, and must be there once", d.file, n)
	}
	return strings.Replace(string(text), d.old, d.new, 1), nil
}

// try runs the tests with the defect in place.
func (d defect) try(ctx context.Context, root, scratch string) result {
	text, err := d.broken(root)
	if err != nil {
		return result{err: err}
	}
	changed, overlay := scratch+".go", scratch+".json"
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, filepath.FromSlash(d.file)): changed}})
	if err != nil {
		return result{err: err}
	}
	if err := errors.Join(os.WriteFile(changed, []byte(text), 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return result{err: err}
	}
	began := time.Now()
	dir, tests := d.where(root)
	args := append([]string{"test", "-overlay", overlay, "-vet=off", "-count=1", "-failfast", "-timeout", patience.String()}, tests...)
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the table's own arguments
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	v := result{took: time.Since(began)}
	switch report := string(out); {
	case err == nil:
	case strings.Contains(report, "[build failed]") || strings.Contains(report, "[setup failed]"):
		v.err = fmt.Errorf("it does not compile: %s", report)
	case undecided(report):
		v.err = fmt.Errorf("its tests took longer than %v and none had failed by then: the machine may be too slow", patience)
	default:
		v.caught, v.by = true, firstFailure(report)
	}
	return v
}

// proof is the folder of this module.
const proof = "internal/test/proof"

// where returns the module's folder and the arguments of go test: some packages are in
// other modules.
func (d defect) where(root string) (dir string, tests []string) {
	tests = slices.Clone(d.tests)
	for i, t := range tests {
		contrib, inside, ok := strings.Cut(strings.TrimPrefix(t, "./contrib/"), "/")
		if ok && strings.HasPrefix(t, "./contrib/") {
			dir, tests[i] = filepath.Join(root, "contrib", contrib), "./"+inside
		}
		if inside, ok := strings.CutPrefix(t, "./"+proof+"/"); ok {
			dir, tests[i] = filepath.Join(root, proof), "./"+inside
		}
	}
	return cmp.Or(dir, root), tests
}

// undecided reports whether all that went wrong is that time was up.
func undecided(report string) bool {
	return strings.Contains(report, "panic: test timed out") && !strings.Contains(report, "--- FAIL: ")
}

// firstFailure names the test that failed, or what went wrong instead.
func firstFailure(report string) string {
	for _, mark := range []string{"--- FAIL: ", "panic: ", "fatal error: "} {
		if _, rest, ok := strings.Cut(report, mark); ok {
			name, _, _ := strings.Cut(rest, "\n")
			name, _, _ = strings.Cut(name, " (")
			return strings.TrimSpace(name)
		}
	}
	return "a failure without a name"
}
