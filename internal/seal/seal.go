// Package seal adds a checksum or encryption to stored bytes, so that damage and unknown
// versions are detected instead of replayed.
package seal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Version is the newest version of the envelope that this code writes and
// reads: one byte of version, four of CRC-32C over version and content, then
// the content.
const Version = 1

// Overhead is how many bytes Seal adds.
const Overhead = 5

// ErrDamaged is what Open returns, wrapped, for bytes that cannot be trusted.
var ErrDamaged = errors.New("stored bytes are damaged")

// ErrVersion is what Open returns, wrapped, for bytes of a version it does not
// know.
var ErrVersion = errors.New("stored bytes are of an unknown version")

var table = crc32.MakeTable(crc32.Castagnoli)

// Seal returns content in an envelope.
func Seal(content []byte) []byte {
	b := make([]byte, Overhead, Overhead+len(content))
	b[0] = Version
	b = append(b, content...)
	binary.BigEndian.PutUint32(b[1:], sum(Version, content))
	return b
}

// Open returns the content of an envelope. The content shares its memory.
func Open(b []byte) ([]byte, error) {
	if len(b) < Overhead {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrDamaged, len(b))
	}
	if b[0] != Version {
		return nil, fmt.Errorf("%w: version %d; this program knows %d", ErrVersion, b[0], Version)
	}
	content := b[Overhead:]
	if got, want := sum(b[0], content), binary.BigEndian.Uint32(b[1:]); got != want {
		return nil, fmt.Errorf("%w: checksum is %08x, not %08x", ErrDamaged, got, want)
	}
	return content, nil
}

func sum(version byte, content []byte) uint32 {
	return crc32.Update(crc32.Update(0, table, []byte{version}), table, content)
}
