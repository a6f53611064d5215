package crashtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// diskSize is what a small disk holds: the records of a long load test, and SQLite's
// log.
const diskSize = 64 << 20

// Disk is a file system in memory that can be filled.
type Disk struct{ Dir string }

// NewDisk mounts a disk at dir, which it creates.
func NewDisk(dir string) (*Disk, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d", diskSize))
	if err != nil {
		return nil, fmt.Errorf("a small disk cannot be mounted: %w; run as root, or without filling disks (-fills 0)", err)
	}
	return &Disk{dir}, nil
}

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// fill leaves no room on the disk.
func (d *Disk) fill() (err error) {
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for size := 1 << 20; size >= 512; { // the last bytes, too
		_, err := f.Write(make([]byte, size))
		switch {
		case errors.Is(err, syscall.ENOSPC):
			size /= 2
		case err != nil:
			return err
		}
	}
	return nil
}

// free makes room again.
func (d *Disk) free() error { return os.Remove(d.ballast()) }

// Close unmounts it.
func (d *Disk) Close() error { return unix.Unmount(d.Dir, unix.MNT_DETACH) }
