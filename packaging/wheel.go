package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// wheelTags are the platforms of Python's packages. The programs are static, therefore they run
// with glibc and with musl. macOS 12 is the oldest of Go 1.26.
var wheelTags = map[platform]string{
	{"linux", "amd64"}: "manylinux2014_x86_64.musllinux_1_1_x86_64", {"linux", "arm64"}: "manylinux2014_aarch64.musllinux_1_1_aarch64",
	{"darwin", "amd64"}: "macosx_12_0_x86_64", {"darwin", "arm64"}: "macosx_12_0_arm64",
	{"windows", "amd64"}: "win_amd64", {"windows", "arm64"}: "win_arm64",
}

// pythonVersion returns a version as PEP 440 writes it.
func pythonVersion(version string) string {
	return strings.NewReplacer("-alpha.", "a", "-beta.", "b", "-rc.", "rc", "-dev.", ".dev").Replace(version)
}

func wheelMetadata(version string) string {
	return fmt.Sprintf(`Metadata-Version: 2.4
Name: stet-proxy
Version: %s
Summary: The program stet: a sidecar for idempotent HTTP requests and messages
License-Expression: Apache-2.0
License-File: LICENSE
Project-URL: Source, https://github.com/stet-go/stet
Requires-Python: >=3.11
Description-Content-Type: text/markdown

This package has the program `+"`stet`"+`. Install it with `+"`pip install 'stet[proxy]'`"+`, then run `+"`stet proxy --help`"+`.
`, version)
}

// wheels makes a wheel with the program for each platform. On other platforms pip takes the
// source archive, whose build fails with a message.
func (r *release) wheels() error {
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	for _, p := range r.platforms {
		if err := r.wheel(p, license); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return r.refusal()
}

func (r *release) wheel(p platform, license []byte) error {
	program, err := os.ReadFile(r.programs[p])
	if err != nil {
		return err
	}
	name := "stet_proxy-" + pythonVersion(r.version)
	var tags strings.Builder
	for tag := range strings.SplitSeq(wheelTags[p], ".") {
		fmt.Fprintf(&tags, "Tag: py3-none-%s\n", tag)
	}
	info := name + ".dist-info/"
	entries := []entry{
		{name + ".data/scripts/" + filepath.Base(r.programs[p]), 0o755, program},
		{info + "METADATA", 0o644, []byte(wheelMetadata(pythonVersion(r.version)))},
		{info + "WHEEL", 0o644, []byte("Wheel-Version: 1.0\nGenerator: stet packaging\nRoot-Is-Purelib: false\n" + tags.String())},
		{info + "licenses/LICENSE", 0o644, license},
	}
	var record strings.Builder
	for _, e := range entries {
		sum := sha256.Sum256(e.content)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", e.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(e.content))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	entries = append(entries, entry{info + "RECORD", 0o644, []byte(record.String())})
	return r.zip(fmt.Sprintf("%s-py3-none-%s.whl", name, wheelTags[p]), entries)
}

// refusal makes the source archive.
func (r *release) refusal() error {
	folder := "stet_proxy-" + pythonVersion(r.version) + "/"
	return r.tgz(strings.TrimSuffix(folder, "/")+".tar.gz", []entry{
		{folder + "PKG-INFO", 0o644, []byte(wheelMetadata(pythonVersion(r.version)))},
		{folder + "pyproject.toml", 0o644, []byte("[build-system]\nrequires = []\nbuild-backend = \"refuse\"\nbackend-path = [\".\"]\n")},
		{folder + "refuse.py", 0o644, []byte(`import platform
import sys


def build_wheel(*_):
    sys.exit(f"stet-proxy has no program for {platform.system()} on {platform.machine()}: it has them for Linux, macOS 12 and Windows on amd64 and arm64. "
             "With Go you can build it: go install github.com/stet-go/stet/cmd/stet@latest")


prepare_metadata_for_build_wheel = build_editable = build_sdist = build_wheel
`)},
	})
}

// entry is a file in an archive.
type entry struct {
	name    string
	mode    os.FileMode
	content []byte
}

// zip writes a zip archive into the folder of packages.
func (r *release) zip(name string, entries []entry) error {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: r.date.Truncate(2 * time.Second)}
		header.SetMode(e.mode)
		f, err := w.CreateHeader(header)
		if err == nil {
			_, err = f.Write(e.content)
		}
		if err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, name), b.Bytes(), 0o644)
}

// tgz writes a compressed tar archive into the folder of packages.
func (r *release) tgz(name string, entries []entry) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range entries {
		err := w.WriteHeader(&tar.Header{Name: e.name, Mode: int64(e.mode), Size: int64(len(e.content)), ModTime: r.date, Typeflag: tar.TypeReg})
		if err == nil {
			_, err = w.Write(e.content)
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, name), b.Bytes(), 0o644)
}
