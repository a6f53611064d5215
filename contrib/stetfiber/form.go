package stetfiber

import (
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/textproto"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// form is a multipart body that fasthttp has parsed, written again in a fixed order. fasthttp
// itself would write its fields in random order, and each retry would be another request.
type form struct {
	parts []io.Reader
	size  int64
	open  multipart.File
}

// formOf returns the form of a request, or nil if it has another body.
func formOf(req *fasthttp.Request) *form {
	boundary := string(req.Header.MultipartFormBoundary())
	if boundary == "" || req.Header.ContentLength() <= 0 || len(req.Header.ContentEncoding()) > 0 {
		return nil
	}
	read, err := req.MultipartForm()
	if err != nil {
		return nil
	}
	f := &form{}
	for _, name := range slices.Sorted(maps.Keys(read.Value)) {
		for _, value := range read.Value[name] {
			f.text(boundary, textproto.MIMEHeader{"Content-Disposition": {mime.FormatMediaType("form-data", map[string]string{"name": name})}})
			f.add(strings.NewReader(strings.Clone(value)), int64(len(value)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(read.File)) {
		for _, file := range read.File[name] {
			f.text(boundary, file.Header)
			f.add(&fileReader{f: f, header: file}, file.Size)
		}
	}
	end := "\r\n--" + boundary + "--\r\n"
	f.add(strings.NewReader(end), int64(len(end)))
	return f
}

// text adds the boundary and the header of a part.
func (f *form) text(boundary string, header textproto.MIMEHeader) {
	var b strings.Builder
	b.WriteString("\r\n--" + boundary + "\r\n")
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			b.WriteString(name + ": " + value + "\r\n")
		}
	}
	b.WriteString("\r\n")
	f.add(strings.NewReader(b.String()), int64(b.Len()))
}

func (f *form) add(r io.Reader, size int64) {
	f.parts = append(f.parts, r)
	f.size += size
}

// Read implements io.Reader.
func (f *form) Read(p []byte) (int, error) {
	for len(f.parts) > 0 {
		n, err := f.parts[0].Read(p)
		if err != io.EOF { //nolint:errorlint // io.Reader returns it unwrapped
			return n, err
		}
		f.close()
		if f.parts = f.parts[1:]; n > 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}

// close closes the file that is being read.
func (f *form) close() {
	if f.open != nil {
		_ = f.open.Close()
		f.open = nil
	}
}

// fileReader opens a file of the form when it is read.
type fileReader struct {
	f      *form
	header *multipart.FileHeader
}

// Read implements io.Reader.
func (r *fileReader) Read(p []byte) (int, error) {
	if r.f.open == nil {
		file, err := r.header.Open()
		if err != nil {
			return 0, err
		}
		r.f.open = file
	}
	return r.f.open.Read(p)
}
