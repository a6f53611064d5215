package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// imageUser is the user "nonroot" of many images without a shell.
const imageUser = 65532

// image makes an OCI layout with one image for each Linux platform. The images have no shell.
func (r *release) image() error {
	ca, err := os.ReadFile(r.ca)
	if err != nil {
		return fmt.Errorf("-ca: %w (apt-get install ca-certificates)", err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		image, err := r.imageOf(p, ca)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}})
	}
	folder := filepath.Join(r.out, "image")
	if err := os.RemoveAll(folder); err != nil { // layout.Write adds to an existing layout
		return err
	}
	_, err = layout.Write(folder, index)
	return err
}

func (r *release) imageOf(p platform, ca []byte) (v1.Image, error) {
	content, err := r.rootFiles(r.programs[p], ca)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "packaging"}}); err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = p.os, p.arch, v1.Time{Time: r.date}
	file.Config = v1.Config{
		User: fmt.Sprintf("%d:%[1]d", imageUser), WorkingDir: "/var/lib/stet", Entrypoint: []string{"/usr/bin/stet"}, Cmd: []string{"--help"},
		Labels: map[string]string{
			"org.opencontainers.image.title": "stet", "org.opencontainers.image.licenses": "Apache-2.0", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.source": "https://github.com/stet-go/stet", "org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.description": "Idempotency for HTTP, gRPC and messages: a retry gets the first outcome",
		},
	}
	return mutate.ConfigFile(image, file)
}

// rootFiles returns the image's files as a tar archive.
func (r *release) rootFiles(program string, ca []byte) ([]byte, error) {
	code, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name    string
		mode    int64
		owner   int
		content []byte
	}{
		{"etc/", 0o755, 0, nil},
		{"etc/passwd", 0o644, 0, fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nstet:x:%d:%[1]d:stet:/var/lib/stet:/sbin/nologin\n", imageUser)},
		{"etc/group", 0o644, 0, fmt.Appendf(nil, "root:x:0:\nstet:x:%d:\n", imageUser)},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, 0, ca},
		{"tmp/", 0o1777, 0, nil},
		{"usr/bin/stet", 0o755, 0, code},
		{"var/lib/stet/", 0o750, imageUser, nil},
	} {
		header := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.content)), ModTime: r.date, Typeflag: tar.TypeReg}
		if f.content == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err = w.Close()
	return b.Bytes(), err
}
