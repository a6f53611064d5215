//go:build unix

package sqlite

import (
	"io/fs"
	"syscall"
)

// names is how many names a file has.
func names(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Nlink) //nolint:unconvert // its type differs between systems
	}
	return 1
}
