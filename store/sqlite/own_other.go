//go:build !unix

package sqlite

import "io/fs"

// names is how many names a file has, where that can be told.
func names(fs.FileInfo) uint64 { return 1 }
