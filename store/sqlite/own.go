package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	modernc "modernc.org/sqlite"
)

// create makes the file, for this user alone, if it does not exist. It refuses a file with
// several names: SQLite names the log after the name that it was given, so processes that use
// different names would lose each other's writes.
//
// The file is never opened here: closing it would release the locks of every connection of
// this process to it. SQLite creates it, with the mode of another file.
func (s *Store) create(ctx context.Context, dsn string) error {
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil // SQLite returns the error
	case info.Mode().IsRegular() && names(info) > 1:
		return fmt.Errorf("sqlite: %s has %d names (hard links), and processes that open it by different ones do not see what the others write; remove all but one", s.path, names(info))
	default:
		return nil
	}
	like, err := os.CreateTemp(filepath.Dir(s.path), ".stet-*") // 0600
	if err != nil {
		return nil // as above
	}
	defer func() { _ = os.Remove(like.Name()) }()
	if err := like.Close(); err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	c, err := modernc.NewConnector(dsn + "&modeof=" + url.QueryEscape(like.Name()))
	if err != nil {
		return fmt.Errorf("sqlite: %w", err)
	}
	conn, err := c.Connect(ctx)
	if err != nil {
		return s.explain("open", err, s.path)
	}
	return conn.Close()
}
