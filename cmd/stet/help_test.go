package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestHelpFitsAScreenOf24LinesAnd80Columns(t *testing.T) {
	for _, name := range []string{"", "demo", "doctor", "check", "version", "completion"} {
		status, out, errs := command(t, append(strings.Fields(name), "--help")...)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if status != exitOK || errs != "" || len(lines) < 5 || len(lines) > 24 {
			t.Errorf("stet %s --help: status %d, %d lines, %s", name, status, len(lines), errs)
		}
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > 80 {
				t.Errorf("stet %s --help: %d columns: %s", name, n, line)
			}
		}
	}
	if _, out, _ := command(t, "--help"); !strings.Contains(out, "\n  completion ") || !strings.Contains(out, "\n  proxy ") {
		t.Errorf("a command is missing:\n%s", out)
	}
}

// inBash completes the words as bash does when TAB is pressed after the last one.
func inBash(t *testing.T, words ...string) string {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "stet")
	program := "#!/bin/sh\n" + commandEnv + "=1 exec '" + os.Args[0] + "' \"$@\"\n"
	if err := os.WriteFile(script, []byte(program), 0o700); err != nil { //nolint:gosec // the test executes it
		t.Fatal(err)
	}
	// The functions of the package bash-completion that the script calls.
	cmd := exec.CommandContext(t.Context(), "bash", "--norc", "-c", `
		_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }
		__ltrim_colon_completions() { :; }
		compopt() { :; }
		source <(stet completion bash)
		COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
		__start_stet
		printf '%s\n' "${COMPREPLY[@]}"`, "bash", "stet")
	cmd.Args = append(cmd.Args, words...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || errs.Len() > 0 {
		t.Fatalf("bash (apt-get install bash): %v, %s", err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

func TestBashCompletesCommandsAndFlags(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"doc", "doctor"},
		{"demo --pay", "--payments"},
		{"keys --out", "--output"},
		{"doctor -o j", "json"},
		{"keys ls -o t", "table"},
		{"completion fi", "fish"},
		{"demo-s", ""}, // a hidden command
		{"version ", ""},
	} {
		words := strings.Split(c.words, " ")
		if got := inBash(t, words...); strings.TrimSpace(strings.Split(got, "(")[0]) != c.want {
			t.Errorf("stet %s<TAB>: %q, want %q", c.words, got, c.want)
		}
	}
}

func TestEveryShellGetsACompletionScript(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if status, out, errs := command(t, "completion", shell); status != exitOK || errs != "" || !strings.Contains(out, "__complete") {
			t.Errorf("%s: status %d, %d bytes, %s", shell, status, len(out), errs)
		}
	}
	if status, out, _ := command(t, "__complete", "keys", "ls", "-o", ""); status != exitOK || !strings.HasPrefix(out, "table\njson\n:4") {
		t.Errorf("got %d %q; want status == exitOK, strings.HasPrefix(out, \"table\\njson\\n:4\")", status, out)
	}
	if _, out, _ := command(t, "__complete", "check", ""); !strings.HasSuffix(strings.TrimSpace(out), ":0") { // files
		t.Errorf("%q", out)
	}
}
