package stet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
)

// outcomeVersion is the first byte of a stored outcome. After it, with every
// number as an unsigned varint in its shortest form and every string with its
// length before it:
//
//	face, reason, status
//	media type
//	number of header fields, and for each: name, number of values, values
//	the same for the trailer fields
//	trace
//	body, up to the end
//
// Names are in ascending order, so that equal outcomes are equal bytes. That it
// failed is the state of its record. The checksum is the sealer's.
const outcomeVersion = 1

// maxStatus bounds the status of an outcome: it has three digits, as in HTTP.
const maxStatus = 999

// errCodec is what decoding returns, wrapped, for bytes that it does not know.
var errCodec = errors.New("not an outcome of a known version")

// unstorable says why encode must not be called; nil if it may. The fields are as
// sortFields returns them.
func (o *Outcome) unstorable() error {
	n := 0
	for _, fields := range [...][]store.Field{o.Header, o.Trailer} {
		for _, f := range fields {
			if f.Name == "" {
				return errors.New("the result was not kept: a header or trailer field has no name")
			}
			n += 1 + len(f.Values)
		}
	}
	switch {
	case n > store.MaxFields:
		return fmt.Errorf("the result was not kept: it has %d header and trailer fields and values; at most %d", n, store.MaxFields)
	case o.Status < 0 || o.Status > maxStatus:
		return fmt.Errorf("the result was not kept: its status %d is not 0 to %d", o.Status, maxStatus)
	case o.Face > store.FaceSQL || o.Reason > store.ReasonResolved:
		return fmt.Errorf("the result was not kept: its face is %v and its reason %v, which are not known", o.Face, o.Reason)
	}
	return nil
}

func uvarintLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

func stringLen(s string) int { return uvarintLen(len(s)) + len(s) }

func fieldsLen(fields []store.Field) int {
	n := uvarintLen(len(fields))
	for _, f := range fields {
		n += stringLen(f.Name) + uvarintLen(len(f.Values))
		for _, v := range f.Values {
			n += stringLen(v)
		}
	}
	return n
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendFields(b []byte, fields []store.Field) []byte {
	b = binary.AppendUvarint(b, uint64(len(fields)))
	for _, f := range fields {
		b = appendString(b, f.Name)
		b = binary.AppendUvarint(b, uint64(len(f.Values)))
		for _, v := range f.Values {
			b = appendString(b, v)
		}
	}
	return b
}

// Size is how many bytes of Policy.MaxResult the outcome takes.
func (o *Outcome) Size() int {
	return 3 + uvarintLen(o.Status) + stringLen(o.Type) + fieldsLen(o.Header) + fieldsLen(o.Trailer) + stringLen(o.Trace) + len(o.Body)
}

// encode returns the stored form.
func (o *Outcome) encode() []byte {
	b := make([]byte, 0, o.Size())
	b = append(b, outcomeVersion, byte(o.Face), byte(o.Reason))
	b = binary.AppendUvarint(b, uint64(o.Status))
	b = appendString(b, o.Type)
	b = appendFields(b, o.Header)
	b = appendFields(b, o.Trailer)
	b = appendString(b, o.Trace)
	return append(b, o.Body...)
}

// decoder reads what encode wrote. Once something is wrong it stays so.
type decoder struct {
	b    []byte
	text string // b up to the body, as a string, so that strings are cut from it
	at   int
	left int // of MaxFields
	err  error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s at byte %d", errCodec, what, d.at)
	}
}

// octet reads a byte of at most limit.
func (d *decoder) octet(limit byte) byte {
	if d.err != nil || d.at >= len(d.b) || d.b[d.at] > limit {
		d.fail("bad byte")
		return 0
	}
	d.at++
	return d.b[d.at-1]
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

func (d *decoder) string() string {
	from, to := d.skip()
	if d.err != nil {
		return ""
	}
	return d.text[from:to]
}

// count reads a number of fields or values.
func (d *decoder) count() int {
	n := d.number(d.left)
	d.left -= n
	return n
}

// fields reads header or trailer fields.
func (d *decoder) fields() []store.Field {
	n := d.count()
	if n == 0 || n > len(d.b)-d.at {
		if n > 0 {
			d.fail("too many fields")
		}
		return nil
	}
	fields := make([]store.Field, 0, n)
	values := make([]string, 0, n) // nearly always one each
	for range n {
		f := store.Field{Name: d.string()}
		if f.Name == "" || len(fields) > 0 && fields[len(fields)-1].Name >= f.Name {
			d.fail("names out of order")
		}
		first := len(values)
		for range d.count() {
			values = append(values, d.string())
		}
		if d.err != nil {
			return nil
		}
		f.Values = values[first:len(values):len(values)]
		fields = append(fields, f)
	}
	return fields
}

// decodeStored undoes encode. The body shares b's memory.
func decodeStored(b []byte) (o Outcome, err error) {
	d := decoder{b: b, left: store.MaxFields}
	if len(b) == 0 || b[0] != outcomeVersion {
		d.fail("unknown version")
		return o, d.err
	}
	d.text = d.head()
	d.at = 1
	o.Face, o.Reason = store.Face(d.octet(byte(store.FaceSQL))), store.Reason(d.octet(byte(store.ReasonResolved)))
	o.Status = d.number(maxStatus)
	o.Type = d.string()
	o.Header, o.Trailer = d.fields(), d.fields()
	o.Trace = d.string()
	if d.err != nil {
		return Outcome{}, d.err
	}
	o.Body = b[d.at:]
	return o, nil
}

// head returns everything up to the body as a string.
func (d *decoder) head() string {
	ahead := *d
	ahead.at = 3
	if len(d.b) < ahead.at {
		d.fail("cut off")
		return ""
	}
	ahead.number(maxStatus)
	ahead.skip()
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
	ahead.skip()
	if d.err = ahead.err; d.err != nil {
		return ""
	}
	return string(d.b[:ahead.at])
}

// sortFields returns header or trailer fields as they are stored: in the order of their
// names, each name once, with all its values in their order.
func sortFields(fields []store.Field) []store.Field {
	inOrder := true
	for i := 1; i < len(fields) && inOrder; i++ {
		inOrder = fields[i-1].Name < fields[i].Name
	}
	if inOrder {
		return fields
	}
	byName := slices.SortedStableFunc(slices.Values(fields), func(a, b store.Field) int { return strings.Compare(a.Name, b.Name) })
	merged := byName[:1]
	for _, f := range byName[1:] {
		if last := &merged[len(merged)-1]; last.Name == f.Name {
			last.Values = slices.Concat(last.Values, f.Values)
		} else {
			merged = append(merged, f)
		}
	}
	return merged
}
