// Command packaging builds the packages of a release from this checkout: .deb and .rpm, an OCI
// image, wheels and npm packages. It needs no network and no daemon. The same sources give the
// same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// platform is an operating system and a processor, by Go's names.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// platforms are also those of .goreleaser.yaml.
var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"}}

// release is one build.
type release struct {
	root      string // of the checkout
	out       string
	version   string // without v
	commit    string
	date      time.Time // of the commit; all files in packages have it
	ca        string    // file with the certificates for the image
	platforms []platform
	programs  map[platform]string // path of each
}

func main() {
	r := &release{}
	var names, kinds string
	flag.StringVar(&r.out, "out", "dist", "folder for the packages")
	flag.StringVar(&r.version, "version", "", "version without v, such as 0.3.0. Required")
	flag.StringVar(&r.ca, "ca", "/etc/ssl/certs/ca-certificates.crt", "certificate authorities for the image (Debian package ca-certificates)")
	flag.StringVar(&names, "platforms", "", "such as linux/amd64,darwin/arm64 (default all)")
	flag.StringVar(&kinds, "kinds", "linux,image,wheel,npm", "kinds of packages")
	flag.Parse()
	if err := r.run(names, kinds); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

// run builds the packages of these kinds.
func (r *release) run(names, kinds string) (err error) {
	if r.version == "" {
		return errors.New("which version? Give -version")
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if err := r.choose(names); err != nil {
		return err
	}
	if err := r.sources(); err != nil {
		return err
	}
	if err := r.build(); err != nil {
		return err
	}
	makers := map[string]func() error{"linux": r.linux, "image": r.image, "wheel": r.wheels, "npm": r.npm}
	for kind := range strings.SplitSeq(kinds, ",") {
		maker, ok := makers[kind]
		if !ok {
			return fmt.Errorf("-kinds: %q: must be linux, image, wheel or npm", kind)
		}
		if err := maker(); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

// choose chooses platforms.
func (r *release) choose(names string) error {
	if names == "" {
		r.platforms = platforms
		return nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(platforms, func(p platform) bool { return p.String() == name })
		if i < 0 {
			return fmt.Errorf("-platforms: %q: must be of %v", name, platforms)
		}
		r.platforms = append(r.platforms, platforms[i])
	}
	return nil
}

// sources reads from Git which sources these are.
func (r *release) sources() error {
	text, err := exec.CommandContext(context.Background(), "git", "log", "-1", "--format=%H %cI").Output()
	if err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	commit, date, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	r.commit = commit
	if r.date, err = time.Parse(time.RFC3339, date); err != nil {
		return err
	}
	r.date = r.date.UTC()
	top, err := exec.CommandContext(context.Background(), "git", "rev-parse", "--show-toplevel").Output()
	r.root = strings.TrimSpace(string(top))
	return err
}

// build builds the programs.
func (r *release) build() error {
	r.programs = make(map[platform]string)
	for _, p := range r.platforms {
		path := filepath.Join(r.out, "program", p.os+"_"+p.arch, "stet")
		if p.os == "windows" {
			path += ".exe"
		}
		flags := fmt.Sprintf("-s -w -X main.release=v%s -X main.commit=%s -X main.date=%s", r.version, r.commit, r.date.Format(time.RFC3339))
		cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", path, "./cmd/stet")
		cmd.Dir = r.root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS="+p.os, "GOARCH="+p.arch)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: go build: %w", p, err)
		}
		r.programs[p] = path
	}
	return nil
}
