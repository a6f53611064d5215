package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names of platforms in Node's process.platform and process.arch.
var (
	nodeOS   = map[string]string{"linux": "linux", "darwin": "darwin", "windows": "win32"}
	nodeArch = map[string]string{"amd64": "x64", "arm64": "arm64"}
)

// npm makes a package with the program for each platform, and the package of clients/js, which
// has them as optional dependencies: npm installs only the package of its platform.
func (r *release) npm() error {
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	for _, p := range r.platforms {
		program, err := os.ReadFile(r.programs[p])
		if err != nil {
			return err
		}
		name := fmt.Sprintf("@stet-go/stet-%s-%s", nodeOS[p.os], nodeArch[p.arch])
		description, err := json.MarshalIndent(map[string]any{
			"name": name, "version": r.version, "description": "The program stet for " + p.String(), "license": "Apache-2.0",
			"repository": "github:stet-go/stet", "os": []string{nodeOS[p.os]}, "cpu": []string{nodeArch[p.arch]}, "preferUnplugged": true,
		}, "", "  ")
		if err != nil {
			return err
		}
		err = r.tgz(npmFile(name, r.version), []entry{
			{"package/package.json", 0o644, description},
			{"package/README.md", 0o644, []byte("The program `stet` for " + p.String() + ". Install `@stet-go/stet` instead, and run `npx stet proxy --help`.\n")},
			{"package/LICENSE", 0o644, license},
			{"package/bin/" + filepath.Base(r.programs[p]), 0o755, program},
		})
		if err != nil {
			return err
		}
	}
	return r.npmClient()
}

func npmFile(name, version string) string {
	return strings.NewReplacer("@", "", "/", "-").Replace(name) + "-" + version + ".tgz"
}

// npmClient packs clients/js with the version and the dependencies of the release.
func (r *release) npmClient() error {
	folder := filepath.Join(r.root, "clients", "js")
	b, err := os.ReadFile(filepath.Join(folder, "package.json"))
	if err != nil {
		return err
	}
	var description map[string]any
	if err := json.Unmarshal(b, &description); err != nil {
		return err
	}
	programs := make(map[string]string)
	for _, p := range platforms { // also if they were not built now
		programs[fmt.Sprintf("@stet-go/stet-%s-%s", nodeOS[p.os], nodeArch[p.arch])] = r.version
	}
	description["version"], description["optionalDependencies"] = r.version, programs
	if b, err = json.MarshalIndent(description, "", "  "); err != nil {
		return err
	}
	entries := []entry{{"package/package.json", 0o644, b}}
	list, _ := description["files"].([]any)
	for _, pattern := range list {
		found, err := filepath.Glob(filepath.Join(folder, fmt.Sprint(pattern)))
		if err != nil {
			return err
		}
		for _, top := range found {
			err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				name, err := filepath.Rel(folder, path)
				entries = append(entries, entry{"package/" + filepath.ToSlash(name), 0o644, content})
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return r.tgz(npmFile("@stet-go/stet", r.version), entries)
}
