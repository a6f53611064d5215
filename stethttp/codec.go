package stethttp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stet-go/stet"
)

// codecVersion is the first byte of a stored response. After it, with every
// number as an unsigned varint in its shortest form and every string with its
// length before it:
//
//	status
//	number of header fields, and for each: name, number of values, values
//	the same for the trailer fields
//	body
//
// Names are in ascending order, so that equal responses are equal bytes. The
// checksum is the engine's.
const codecVersion = 1

// maxFields bounds the header and trailer fields, and their values, of a stored
// response.
const maxFields = 4096

// errCodec is what decoding returns, wrapped, for bytes that it does not know.
var errCodec = errors.New("stethttp: not a stored response of a known version")

// field is a header or trailer field with its list of values; without any, it
// is set to nothing (which keeps net/http from adding it).
type field struct {
	name   string
	values []string
}

// stored is a response as it is stored.
type stored struct {
	status          int
	header, trailer []field
	body            []byte
}

// storable reports whether encode may be called.
func (s *stored) storable() bool {
	n := 0
	for _, fields := range [...][]field{s.header, s.trailer} {
		for _, f := range fields {
			n += 1 + len(f.values)
		}
	}
	return n <= maxFields && finalStatus(s.status)
}

// finalStatus reports whether net/http can send the status as a final one.
func finalStatus(status int) bool { return 200 <= status && status <= 999 }

func uvarintLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

func fieldsLen(fields []field) int {
	n := uvarintLen(len(fields))
	for _, f := range fields {
		n += uvarintLen(len(f.name)) + len(f.name) + uvarintLen(len(f.values))
		for _, v := range f.values {
			n += uvarintLen(len(v)) + len(v)
		}
	}
	return n
}

func appendFields(b []byte, fields []field) []byte {
	b = binary.AppendUvarint(b, uint64(len(fields)))
	for _, f := range fields {
		b = binary.AppendUvarint(b, uint64(len(f.name)))
		b = append(b, f.name...)
		b = binary.AppendUvarint(b, uint64(len(f.values)))
		for _, v := range f.values {
			b = binary.AppendUvarint(b, uint64(len(v)))
			b = append(b, v...)
		}
	}
	return b
}

// size is the length of what encode returns.
func (s *stored) size() int {
	return 1 + uvarintLen(s.status) + fieldsLen(s.header) + fieldsLen(s.trailer) + uvarintLen(len(s.body)) + len(s.body)
}

// encode returns the stored form. The names are in ascending order already.
func (s *stored) encode() []byte {
	b := make([]byte, 1, s.size())
	b[0] = codecVersion
	b = binary.AppendUvarint(b, uint64(s.status))
	b = appendFields(b, s.header)
	b = appendFields(b, s.trailer)
	b = binary.AppendUvarint(b, uint64(len(s.body)))
	return append(b, s.body...)
}

// decoder reads what encode wrote. Once something is wrong it stays so.
type decoder struct {
	b    []byte
	text string // b up to the body, as a string, so that strings are cut from it
	at   int
	left int // of maxFields
	err  error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s at byte %d", errCodec, what, d.at)
	}
}

// number reads a number up to limit.
func (d *decoder) number(limit int) int {
	if d.err != nil {
		return 0
	}
	n, size := binary.Uvarint(d.b[d.at:])
	if size <= 0 || n > uint64(limit) || size != uvarintLen(int(n)) {
		d.fail("bad number")
		return 0
	}
	d.at += size
	return int(n)
}

// skip reads a string and returns where it is.
func (d *decoder) skip() (from, to int) {
	n := d.number(len(d.b))
	if n > len(d.b)-d.at {
		d.fail("string too long")
		return 0, 0
	}
	from = d.at
	d.at += n
	return from, d.at
}

// count reads a number of fields or values.
func (d *decoder) count() int {
	n := d.number(d.left)
	d.left -= n
	return n
}

// fields reads header or trailer fields.
func (d *decoder) fields() []field {
	n := d.count()
	if n == 0 || n > len(d.b)-d.at {
		if n > 0 {
			d.fail("too many fields")
		}
		return nil
	}
	fields := make([]field, 0, n)
	values := make([]string, 0, n) // nearly always one each
	for range n {
		from, to := d.skip()
		f := field{name: d.text[from:to]}
		if f.name == "" || len(fields) > 0 && fields[len(fields)-1].name >= f.name {
			d.fail("names out of order")
		}
		first := len(values)
		for range d.count() {
			from, to := d.skip()
			values = append(values, d.text[from:to])
		}
		if d.err != nil {
			return nil
		}
		f.values = values[first:len(values):len(values)]
		fields = append(fields, f)
	}
	return fields
}

// decode undoes encode. The body shares b's memory.
func decode(b []byte) (stored, error) {
	d := decoder{b: b, left: maxFields}
	if len(b) == 0 || b[0] != codecVersion {
		d.fail("unknown version")
		return stored{}, d.err
	}
	d.at = 1
	s := stored{status: d.number(999)}
	if !finalStatus(s.status) {
		d.fail("bad status")
	}
	d.text = d.head()
	s.header = d.fields()
	s.trailer = d.fields()
	from, to := d.skip()
	s.body = b[from:to]
	if d.at != len(b) {
		d.fail("more bytes than a response")
	}
	if d.err != nil {
		return stored{}, d.err
	}
	return s, nil
}

// head returns everything up to the body as a string.
func (d *decoder) head() string {
	ahead := *d
	for range 2 {
		for range ahead.count() {
			ahead.skip()
			for range ahead.count() {
				ahead.skip()
			}
			if ahead.err != nil {
				break
			}
		}
	}
	if ahead.err != nil {
		d.fail("bad fields")
	}
	return string(d.b[:ahead.at])
}

// trailers sets the trailers that net/http wants to see before, or after, the
// header is written.
func (s *stored) trailers(h http.Header, before bool) {
	for _, f := range s.trailer {
		if strings.HasPrefix(f.name, http.TrailerPrefix) == before {
			h[f.name] = f.values
		}
	}
}

// Outcome returns the outcome that a response is stored as, for a stet.Verify
// that knows what a dead run came to. status is 200 to 999; one of 500 and
// above makes the outcome a failure. Of header, the fields that are never
// stored are left out, and so are Set-Cookie and Content-Length. header and
// body are copied.
func Outcome(status int, header http.Header, body []byte) (stet.Outcome, error) {
	filter := newHeaderFilter(Options{ReplayedHeader: DefaultReplayedHeader, DropHeaders: []string{"Trailer"}})
	s := stored{status: status, header: filter.fields(header, nil), body: body}
	if !s.storable() {
		return stet.Outcome{}, invalid("Outcome: the status %d is not 200 to 999, or there are more than %d header fields and values", status, maxFields)
	}
	if !bodyAllowed(status) && len(body) > 0 {
		return stet.Outcome{}, invalid("Outcome: a response with status %d has no body", status)
	}
	return stet.Outcome{State: settledAs(status), Result: s.encode()}, nil
}

func sortFields(fields []field) {
	slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
}

// settledAs returns the state that a response's status stands for.
func settledAs(status int) stet.State {
	if status >= http.StatusInternalServerError {
		return stet.Failed
	}
	return stet.Completed
}

// bodyAllowed reports whether a response with this status may have content
// (RFC 9110, section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
