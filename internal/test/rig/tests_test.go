package rig_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A test that fails once is forgiven only if it passes five times alone, and aloud.
func TestFailingTestIsRepeated(t *testing.T) {
	script, err := filepath.Abs("tests.sh")
	if err != nil {
		t.Fatal(err)
	}
	const once = `func TestOnce(t *testing.T) {
	if f, err := os.OpenFile("seen", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		f.Close()
		t.Error("the first time")
	}
}
`
	for name, c := range map[string]struct {
		code string
		fail bool
		says string
	}{
		"all pass":                    {"func TestFine(*testing.T) { _ = os.Args }\n", false, "ok"},
		"one fails once":              {once, false, "UNSTEADY: TestOnce of tried"},
		"one fails always":            {"func TestBad(t *testing.T) { t.Error(os.Args) }\n", true, "5 times by themselves: TestBad of tried"},
		"one fails and one does once": {once + "func TestBad(t *testing.T) { t.Error(1) }\n", true, "TestOnce|TestBad"},
		"a second failure is rare": {`func TestRare(t *testing.T) {
	seen, _ := os.ReadFile("runs")
	os.WriteFile("runs", append(seen, 'x'), 0o600)
	if n := len(seen); n == 0 || n == 4 {
		t.Error("run", n)
	}
}
`, true, "TestRare"},
		"a panic":                {strings.Replace(once, `t.Error("the first time")`, `panic("once")`, 1), true, "no second look"},
		"too many":               {once + four(), true, "no second look: more than 3"},
		"the package as a whole": {"func TestMain(m *testing.M) { m.Run(); os.Exit(1) }\nfunc TestFine(*testing.T) {}\n", true, "no second look"},
		"no program":             {"func TestFine(*testing.T) { os.Nothing() }\n", true, "no second look"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"go.mod":       "module tried\n\ngo 1.26\n",
				"some_test.go": "package tried\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\n" + c.code,
			} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), script, "-vet=off", "-p", "1", "-timeout", "1m", "./...")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if (err != nil) != c.fail {
				t.Errorf("it ended with %v; want an error: %v", err, c.fail)
			}
			if !strings.Contains(string(out), c.says) {
				t.Errorf("it did not say %q", c.says)
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

// four is the code of four tests that fail once.
func four() string {
	var b strings.Builder
	for _, n := range []string{"A", "B", "C", "D"} {
		b.WriteString("func Test" + n + "(t *testing.T) { t.Error(" + `"` + n + `"` + ") }\n")
	}
	return b.String()
}
