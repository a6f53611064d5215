package rig

import (
	"cmp"
	_ "embed" // of jars.sh
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

//go:embed jars.sh
var jarsScript string

// classPath is the class path of a broker that jars.sh has downloaded, in the version that the script names.
func classPath(name string) (string, error) {
	version := regexp.MustCompile(`(?m)^` + name + `=(\S+)$`).FindStringSubmatch(jarsScript)
	if version == nil {
		return "", fmt.Errorf("jars.sh has no version of %s", name)
	}
	dir := filepath.Join(cmp.Or(os.Getenv("STET_TEST_CACHE"), "/var/cache/stet-tests"), name+"-"+version[1])
	if !exists(dir) {
		return "", fmt.Errorf("there is no folder %s on this machine; run: make services", dir)
	}
	return filepath.Join(dir, "*"), nil
}

// javaOptions are those of small servers that start soon.
func javaOptions(dir string) []string {
	return []string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.io.tmpdir=" + dir}
}
