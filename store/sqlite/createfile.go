package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// creating serialises createFile: closing a file releases the locks that this process has on it.
var creating sync.Mutex

// createFile creates the file for this user alone, if it does not exist. It refuses a file with
// several names: SQLite names the log after the name that it was given. Processes with different
// names would not see the writes of each other.
func createFile(path string) error {
	creating.Lock()
	defer creating.Unlock()
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() && links(info) > 1 {
		return fmt.Errorf("sqlite: %s has %d names (hard links), and processes that open it by different ones do not see what the others write; remove all but one", path, links(info))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // it exists, or SQLite returns the error
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600) // also through a symbolic link
	if err != nil {
		return nil // SQLite returns the error
	}
	return f.Close()
}
