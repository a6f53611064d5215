//go:build !linux

package crashtest

import "errors"

// Disk needs Linux.
type Disk struct{ Dir string }

// NewDisk returns an error.
func NewDisk(string) (*Disk, error) {
	return nil, errors.New("small disks need Linux; run without filling disks (-fills 0)")
}

func (d *Disk) fill() error { return nil }

func (d *Disk) free() error { return nil }

// Close unmounts it.
func (d *Disk) Close() error { return nil }
