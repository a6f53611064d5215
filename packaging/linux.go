package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
	"go.yaml.in/yaml/v3"
)

// linux makes the .deb and the .rpm of each Linux platform, by the description in .goreleaser.yaml.
func (r *release) linux() (err error) {
	description, formats, err := describe(filepath.Join(r.root, ".goreleaser.yaml"), r.version)
	if err != nil {
		return err
	}
	was, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Chdir(r.root); err != nil { // paths in the description start there
		return err
	}
	defer func() { err = errors.Join(err, os.Chdir(was)) }()
	for _, p := range r.platforms {
		for _, format := range formats {
			if p.os != "linux" {
				continue
			}
			if err := r.linuxPackage(p, format, description); err != nil {
				return fmt.Errorf("%s %s: %w", p, format, err)
			}
		}
	}
	return nil
}

// describe reads GoReleaser's nfpms, whose fields are those of nfpm, except the name and the version.
func describe(path, version string) (description []byte, formats []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	var all struct {
		Nfpms []map[string]any
	}
	if err := yaml.Unmarshal(b, &all); err != nil || len(all.Nfpms) != 1 {
		return nil, nil, fmt.Errorf("%s: want one entry in nfpms: %w", path, err)
	}
	n := all.Nfpms[0]
	list, _ := n["formats"].([]any)
	for _, f := range list {
		formats = append(formats, fmt.Sprint(f))
	}
	n["name"], n["version"] = n["package_name"], version
	for _, own := range []string{"package_name", "formats", "file_name_template", "id", "ids", "bindir"} {
		delete(n, own)
	}
	description, err = yaml.Marshal(n)
	return description, formats, err
}

func (r *release) linuxPackage(p platform, format string, description []byte) (err error) {
	config, err := nfpm.Parse(bytes.NewReader(description))
	if err != nil {
		return err
	}
	config.Arch, config.Platform, config.MTime = p.arch, p.os, r.date
	program := &files.Content{Source: r.programs[p], Destination: "/usr/bin/stet", FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: r.date}}
	config.Contents = append(config.Contents, program)
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info.RPM.BuildHost = "stet" // the default is the name of the machine
	info = nfpm.WithDefaults(info)
	if err := nfpm.Validate(info); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(r.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return packager.Package(info, f)
}
