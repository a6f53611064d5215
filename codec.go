package stet

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/stet-go/stet/store"
)

// plainHead is the first byte of the head of an unencrypted outcome. Status, media type and
// body are stored beside the head, where SQL can read them. After the first byte, with numbers
// as unsigned varints in their shortest form, and strings preceded by their length:
//
//	CRC-32C, 4 bytes, see sumOf
//	adapter, reason
//	media type, if it contains characters that the column cannot hold; else ""
//	number of header fields, and for each: name, number of values, values
//	the same for the trailer fields
//	trace
//
// Names are in ascending order, so that equal outcomes have equal bytes. Completed or failed
// is the state of the record. The head of an encrypted outcome is an envelope of package seal
// around all of this, packed by store.Result, with nothing beside it.
const plainHead = 1

// sqlHead is the first byte of the head of an outcome that SQL wrote with header fields. They
// follow as a JSON object of lists of strings, with one character for each byte.
const sqlHead = 3

// headStart is the position of adapter and reason, after the version and the checksum.
const headStart = 5

// headSlack bounds the growth of the length prefixes in a packed result: that of the head, and
// that of the head inside an encrypted one.
const headSlack = 3 + 3

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumOf is the checksum of r: the version, status, media type and length of the head, then the
// rest of the head and the body.
func sumOf(r *store.Result) uint32 {
	b := append(make([]byte, 0, 16+len(r.Type)), r.Head[0])
	b = binary.AppendUvarint(b, uint64(r.Status))
	b = appendString(b, r.Type)
	b = binary.AppendUvarint(b, uint64(len(r.Head)-headStart))
	return crc32.Update(crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, r.Head[headStart:]), castagnoli, r.Body)
}

// errCodec is wrapped by the errors of decoding.
var errCodec = errors.New("not an outcome of a known version")

// unstorable returns why an outcome cannot be encoded. The fields must be in the order of
// sortFields.
func (o *Outcome) unstorable() error {
	n := 0
	for _, fields := range [...][]store.Field{o.Header, o.Trailer} {
		for _, f := range fields {
			if f.Name == "" {
				return errors.New("the result was not stored: a header or trailer field has no name")
			}
			n += 1 + len(f.Values)
		}
	}
	switch {
	case n > store.MaxFields:
		return fmt.Errorf("the result was not stored: it has %d header and trailer fields and values; at most %d", n, store.MaxFields)
	case o.Status < 0 || o.Status > store.MaxStatus:
		return fmt.Errorf("the result was not stored: its status %d is not 0 to %d", o.Status, store.MaxStatus)
	case o.Adapter > store.AdapterSQL || o.Reason > store.ReasonNoEffect:
		return fmt.Errorf("the result was not stored: its adapter %v or reason %v is unknown", o.Adapter, o.Reason)
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

// size is the number of bytes that count towards Policy.MaxResult.
func (o *Outcome) size() int {
	return 3 + uvarintLen(o.Status) + stringLen(o.Type) + fieldsLen(o.Header) + fieldsLen(o.Trailer) + stringLen(o.Trace) + len(o.Body)
}

// encode returns the stored form of an unencrypted outcome. Its body shares memory with o.
func (o *Outcome) encode() store.Result {
	r := store.Result{Status: o.Status, Type: o.Type, Body: o.Body}
	inside := ""
	if unfit(o.Type) != "" {
		r.Type, inside = "", o.Type
	}
	b := make([]byte, headStart, headStart+2+stringLen(inside)+fieldsLen(o.Header)+fieldsLen(o.Trailer)+stringLen(o.Trace))
	b[0] = plainHead
	b = append(b, byte(o.Adapter), byte(o.Reason))
	b = appendString(b, inside)
	b = appendFields(b, o.Header)
	b = appendFields(b, o.Trailer)
	b = appendString(b, o.Trace)
	r.Head = b
	binary.BigEndian.PutUint32(r.Head[1:], sumOf(&r))
	return r
}

// decoder reads the bytes of encode. After the first error, further reads return zero values.
type decoder struct {
	b    []byte
	text string // b as a string, for substrings; "" before the first
	at   int
	left int // of MaxFields
	err  error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s at byte %d", errCodec, what, d.at)
	}
}

// octet reads a byte, at most limit.
func (d *decoder) octet(limit byte) byte {
	if d.err != nil || d.at >= len(d.b) || d.b[d.at] > limit {
		d.fail("bad byte")
		return 0
	}
	d.at++
	return d.b[d.at-1]
}

// number reads a number, at most limit.
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

func (d *decoder) string() string {
	n := d.number(len(d.b))
	if n > len(d.b)-d.at {
		d.fail("string too long")
	}
	if d.err != nil {
		return ""
	}
	if n == 0 {
		return ""
	}
	if d.text == "" {
		d.text = string(d.b)
	}
	d.at += n
	return d.text[d.at-n : d.at]
}

// count reads the number of fields or values.
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
	values := make([]string, 0, n) // usually one each
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

// decodeStored is the reverse of encode. The body shares memory with r.
func decodeStored(r store.Result) (o Outcome, err error) {
	if len(r.Head) == 0 || r.Head[0] == sqlHead {
		return written(r)
	}
	d := decoder{b: r.Head, left: store.MaxFields}
	switch {
	case len(r.Head) < headStart || r.Head[0] != plainHead:
		d.fail("unknown version")
		return o, d.err
	case r.Status < 0 || binary.BigEndian.Uint32(r.Head[1:]) != sumOf(&r):
		d.fail("wrong checksum")
		return o, d.err
	case r.Status > store.MaxStatus:
		d.fail("bad status")
	}
	d.at = headStart
	o.Adapter, o.Reason = store.Adapter(d.octet(byte(store.AdapterSQL))), store.Reason(d.octet(byte(store.ReasonNoEffect)))
	if o.Type = d.string(); (o.Type != "") != (unfit(o.Type) != "") || o.Type != "" && r.Type != "" || unfit(r.Type) != "" {
		d.fail("bad media type")
	}
	o.Header, o.Trailer = d.fields(), d.fields()
	if o.Trace = d.string(); d.at != len(d.b) {
		d.fail("something follows")
	}
	if d.err != nil {
		return Outcome{}, d.err
	}
	o.Status, o.Body = r.Status, r.Body
	if r.Type != "" {
		o.Type = r.Type
	}
	return o, nil
}

// written decodes an outcome that SQL wrote: columns, and perhaps a sqlHead.
func written(r store.Result) (Outcome, error) {
	if r.Status < 0 || r.Status > store.MaxStatus {
		return Outcome{}, fmt.Errorf("%w: the status is %d", errCodec, r.Status)
	}
	o := Outcome{Adapter: store.AdapterSQL, Status: r.Status, Type: r.Type, Body: r.Body}
	if len(r.Head) == 0 {
		return o, nil
	}
	var fields map[string][]string
	if err := json.Unmarshal(r.Head[1:], &fields); err != nil {
		return Outcome{}, fmt.Errorf("%w: the header fields: %w", errCodec, err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		for i, v := range fields[name] {
			fields[name][i] = latin1(v)
		}
		o.Header = append(o.Header, store.Field{Name: name, Values: fields[name]})
	}
	if err := o.unstorable(); err != nil {
		return Outcome{}, fmt.Errorf("%w: %w", errCodec, err)
	}
	return o, nil
}

// latin1 returns the bytes of a header value in which each character stands for a byte of
// Latin-1, as in HTTP libraries of other languages. A value with other characters is UTF-8
// already.
func latin1(value string) string {
	b := make([]byte, 0, len(value))
	for _, char := range value {
		if char > 0xff {
			return value
		}
		b = append(b, byte(char))
	}
	return string(b)
}

// sortFields returns header or trailer fields in their stored form: ordered by name, each name
// once, with all its values in order.
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
