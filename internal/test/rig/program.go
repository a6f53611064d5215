package rig

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// program finds a program in PATH, or where Debian has it: PostgreSQL's are in a
// directory for each version, of which the newest is taken.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	versions, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	slices.SortFunc(versions, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
	for _, path := range append(versions, "/usr/sbin/"+name, "/usr/local/sbin/"+name) {
		if path, err := exec.LookPath(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s on this machine; run: make services", name)
}

// version is N of /usr/lib/postgresql/N/bin/name.
func version(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}
