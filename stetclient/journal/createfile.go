package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// createFile creates the file if there is none, readable for its owner only, and returns
// its path without symbolic links. It refuses a file whose write-ahead log may be another's.
//
// It must not open a file that exists: closing it would release SQLite's locks on the file,
// which POSIX gives to the process.
func createFile(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	// The log is named after the file. Under another name, SQLite would not read it.
	if n := names(info); n > 1 {
		return "", fmt.Errorf("%s has %d names (hard links): remove all but the first", path, n)
	}
	// SQLite would delete the log of an empty file. The log belongs to a journal that was
	// moved or deleted, and that may be open.
	if _, err := os.Lstat(path + "-wal"); info.Size() == 0 && err == nil {
		return "", fmt.Errorf("%s is empty, and %[1]s-wal is the log of a journal that was moved or deleted: put that back, or name another file", path)
	}
	return path, nil
}
