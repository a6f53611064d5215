//go:build !unix

package sqlite

import "io/fs"

// names is the number of hard links of a file. It is unknown on this system.
func names(fs.FileInfo) uint64 { return 1 }
