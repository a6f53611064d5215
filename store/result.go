package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Result is the outcome to replay of a settled operation, byte for byte. A store saves its
// parts unchanged: in separate columns, which people and SQL can read and write, or together,
// in the form of Marshal. Two Results that are Equal are the same outcome.
type Result struct {
	// Status is as in HTTP, 0 where there is none; at most MaxStatus.
	Status int
	// Type is the media type of Body, "" where it is not known: UTF-8 without
	// control characters, of at most MaxLabel bytes.
	Type string
	// Head is what else the engine stores: adapter, reason, header, trailer and trace, with
	// a checksum of all parts; or, where it encrypts, everything, and the other parts
	// are empty. Of a result that was written by SQL, its header fields; nil for none. One
	// without any byte is the same as nil.
	Head []byte
	// Body is the content. nil and an empty slice are the same.
	Body []byte
}

// IsZero tells whether there is nothing in the result.
func (r Result) IsZero() bool {
	return r.Status == 0 && r.Type == "" && len(r.Head) == 0 && len(r.Body) == 0
}

// Equal tells whether all parts are the same.
func (r Result) Equal(other Result) bool {
	return r.Status == other.Status && r.Type == other.Type &&
		bytes.Equal(r.Head, other.Head) && bytes.Equal(r.Body, other.Body)
}

// Size is the length of what Marshal returns.
func (r Result) Size() int {
	if r.IsZero() {
		return 0
	}
	return uvarintLen(r.Status) + uvarintLen(len(r.Type)) + len(r.Type) + uvarintLen(len(r.Head)) + len(r.Head) + len(r.Body)
}

// Marshal packs a result into one value: status, length of the type and the type, length of
// the head and the head, and the body up to the end, with numbers as unsigned varints. For a
// result that IsZero it returns nil.
func (r Result) Marshal() []byte {
	if r.IsZero() {
		return nil
	}
	b := make([]byte, 0, r.Size())
	b = binary.AppendUvarint(b, uint64(r.Status))
	b = append(binary.AppendUvarint(b, uint64(len(r.Type))), r.Type...)
	b = append(binary.AppendUvarint(b, uint64(len(r.Head))), r.Head...)
	return append(b, r.Body...)
}

// Unmarshal undoes Marshal. Head and Body share b's memory. An error wraps ErrDamaged.
func (r *Result) Unmarshal(b []byte) error {
	*r = Result{}
	if len(b) == 0 {
		return nil
	}
	whole, ok := b, true
	number := func(limit int) int {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(limit) || size != uvarintLen(int(n)) {
			ok = false
			return 0
		}
		b = b[size:]
		return int(n)
	}
	part := func(n int) []byte {
		if n > len(b) {
			ok, n = false, 0
		}
		cut := b[:n:n]
		b = b[n:]
		return cut
	}
	var got Result
	got.Status = number(MaxStatus)
	got.Type = string(part(number(len(b))))
	if n := number(len(b)); n > 0 {
		got.Head = part(n)
	}
	if got.Body = b; !ok || got.IsZero() {
		return fmt.Errorf("%w: %d bytes are not a packed result", ErrDamaged, len(whole))
	}
	*r = got
	return nil
}

func uvarintLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}
