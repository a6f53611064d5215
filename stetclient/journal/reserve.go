package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// opened are the files of the journals that this process has open. SQLite's locks
// are of the process, and POSIX drops them all as soon as it closes any descriptor
// of the file: a second Open must not come that far, and nothing but SQLite may
// open a file that exists.
var opened struct {
	sync.Mutex
	files []*reserved
}

// reserved is a file of an open journal, by what it is and by where it was opened:
// SQLite's log lies beside that, also when the file has been moved since.
type reserved struct {
	os.FileInfo
	path string
}

// reserve makes the file if need be, readable for its owner only, and takes it for
// one journal of this process. The same file under another name is the same file.
func reserve(path string) (*reserved, error) {
	opened.Lock()
	defer opened.Unlock()
	// SQLite would let everybody read a file that it makes. One that is new is
	// open nowhere, so closing it drops no lock.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, err
	}
	file := &reserved{info, path}
	if slices.ContainsFunc(opened.files, func(other *reserved) bool { return os.SameFile(info, other.FileInfo) || path == other.path }) {
		return nil, fmt.Errorf("%s is open in this process: a journal belongs to one Transport at a time", path)
	}
	// SQLite's log has the name of the file that was opened: under another one what
	// a dead process had acknowledged would be missing, and be overwritten.
	if n := names(info); n > 1 {
		return nil, fmt.Errorf("%s has %d names (hard links): leave it the one under which it was opened first", path, n)
	}
	// SQLite would delete the log of an empty file, which no other process has left there
	// but the journal that was there before, and may be open in another process.
	if _, err := os.Lstat(path + "-wal"); info.Size() == 0 && err == nil {
		return nil, fmt.Errorf("%s is empty, and beside it is the log of another journal, %[1]s-wal, which was moved or deleted without it: put that back, or name another file", path)
	}
	opened.files = append(opened.files, file)
	return file, nil
}

// free gives a file back.
func free(file *reserved) {
	opened.Lock()
	defer opened.Unlock()
	opened.files = slices.DeleteFunc(opened.files, func(other *reserved) bool { return other == file })
}
