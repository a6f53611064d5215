package main

import (
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"sync"
)

// maxWatched is how many bytes of a watched file are compared.
const maxWatched = 1 << 20

// watching are the files of a process that serves.
type watching struct {
	files, text watched // that the configuration names, and the configuration itself
	logs        []*logFile
	edited      bool // the configuration differs from the one in use
}

// watched are files whose changes are noticed.
type watched struct{ used, last map[string][sha256.Size]byte }

// use records the files as they are now.
func (w *watched) use(names []string) {
	w.used = digests(names)
	w.last = w.used
}

// names replaces the names. Files that were there keep their digest.
func (w *watched) names(names []string) {
	is := digests(names)
	for name := range is {
		if was, ok := w.used[name]; ok {
			is[name] = was
		}
	}
	w.used = is
}

// changed reports whether the files differ from those in use, once for each change. They must be
// the same as at the last call, because a certificate and its key are written one after the other.
func (w *watched) changed(names []string) bool {
	is := digests(names)
	changed := !maps.Equal(is, w.used) && maps.Equal(is, w.last)
	if w.last = is; changed {
		w.used = is
	}
	return changed
}

// digests returns a digest of each file; the zero value if it cannot be read.
func digests(names []string) map[string][sha256.Size]byte {
	all := map[string][sha256.Size]byte{}
	for _, name := range names {
		if name != "" {
			all[name] = digestOf(name)
		}
	}
	return all
}

func digestOf(name string) (sum [sha256.Size]byte) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() { // reading a pipe would take from it
		return sum
	}
	f, err := os.Open(name)
	if err != nil {
		return sum
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxWatched)); err != nil {
		return sum
	}
	h.Sum(sum[:0])
	return sum
}

// logFile is a file to append to. Another program may move it away.
type logFile struct {
	name string
	mu   sync.Mutex
	f    *os.File
}

// Write implements io.Writer.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(p)
}

// Close implements io.Closer.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

// follow opens the file again if its name is that of another file, or of none.
func (l *logFile) follow() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	is, err := os.Stat(l.name)
	was, failed := l.f.Stat()
	if err == nil && failed == nil && os.SameFile(is, was) {
		return nil
	}
	f, err := openAudit(l.name)
	if err != nil {
		return err
	}
	err = l.f.Close()
	l.f = f
	return err
}

// openLog opens a file to append to until the process ends.
func (h *host) openLog(name string) (*logFile, error) {
	f, err := openAudit(name)
	if err != nil {
		return nil, err
	}
	l := &logFile{name: name, f: f}
	h.later(l.Close)
	h.logs = append(h.logs, l)
	return l, nil
}

// followLogs opens log files again that were moved.
func (h *host) followLogs() {
	var errs []error
	for _, l := range h.logs {
		errs = append(errs, l.follow())
	}
	if err := errors.Join(errs...); err != nil {
		h.log.Error("a log file that was moved cannot be opened again; lines go to the moved file", slog.Any("error", err))
	}
}
