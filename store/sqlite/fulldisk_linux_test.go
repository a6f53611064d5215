package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stet-go/stet/store"
)

// A commit that fails because the disk is full has written nothing, and its error says so: the
// log and the client's answer ("not executed") agree.
func TestCommitOnAFullDiskIsNotDone(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m,mode=0777"); err != nil {
		t.Fatalf("a small file system cannot be mounted (%v): run as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(t.Context(), filepath.Join(dir, "stet.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	large := completed(strings.Repeat("x", 200<<10))
	for i := range 100 {
		rec := mustClaim(t, s, request(fmt.Sprint(i)))
		err := s.Settle(t.Context(), rec.Claim(), large, keep)
		if err == nil {
			continue
		}
		if !errors.Is(err, store.ErrNotDone) || !strings.Contains(err.Error(), "commit: the disk is full") || !strings.Contains(err.Error(), nothing) {
			t.Errorf("the error: %v", err)
		}
		if now := mustRead(t, s, rec.ID); now.State != store.Running {
			t.Errorf("the record is %v", now.State)
		}
		return
	}
	t.Error("the disk never was full")
}
