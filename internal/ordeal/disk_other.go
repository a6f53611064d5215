//go:build !linux

package ordeal

import "errors"

type disk struct{ dir string }

func newDisk(string) (*disk, error) {
	return nil, errors.New("small disks need Linux; run without filling disks (-fills 0)")
}

func (d *disk) fill() error { return nil }

func (d *disk) free() error { return nil }

func (d *disk) close() error { return nil }
