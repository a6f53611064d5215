//go:build unix

package journal

import (
	"os"
	"syscall"
)

// names returns how many names a file has.
func names(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}
