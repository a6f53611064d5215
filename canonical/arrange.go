package canonical

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// part is a part of a body that pointers lead to, or through.
type part struct {
	excluded bool
	members  map[string]*part // by name, or by index in decimal
	elements int              // so many elements of an array may be among them
}

// add adds a pointer to a part below p.
func (p *part) add(pointer jsontext.Pointer) {
	for token := range pointer.Tokens() {
		next := p.members[token]
		if next == nil {
			next = &part{}
			if p.members == nil {
				p.members = map[string]*part{}
			}
			p.members[token] = next
			if i, err := strconv.Atoi(token); err == nil && i < math.MaxInt {
				p.elements = max(p.elements, i+1)
			}
		}
		p = next
	}
	p.excluded = true
}

// element is the part of an array's element, nil if none is.
func (p *part) element(i int) *part {
	if p == nil || i >= p.elements {
		return nil
	}
	return p.members[strconv.Itoa(i)]
}

// member is the part of an object's member, nil if none is.
func (p *part) member(name []byte) *part {
	if p == nil || len(p.members) == 0 {
		return nil
	}
	if bytes.IndexByte(name, '\\') < 0 {
		return p.members[string(name)]
	}
	unescaped := make([]byte, 0, len(name))
	for len(name) > 0 {
		r, n := decode(name)
		unescaped, name = utf8.AppendRune(unescaped, r), name[n:]
	}
	return p.members[string(unescaped)]
}

// arranger orders the members of objects, and leaves out excluded values. It reads a body
// once and writes it once, so that deeply nested values are not copied for every object
// around them. The body is valid JSON without white space and with strings in their shortest
// form.
type arranger struct {
	src   []byte
	nodes []node   // in the order of their beginnings
	kept  []member // of the nodes
	open  []member // of the objects that have not ended yet
	out   []byte
}

// node is a part that is not copied unchanged: an object whose members are written one by
// one, or an element that is left out.
type node struct {
	start, end  int
	first, last int // of its members in arranger.kept
	next        int // the first node after it and its content
	excluded    bool
}

// member is a member of an object, as offsets.
type member struct {
	name, value, end int
	node             int // the first node inside or behind
}

// arrange returns src in order, less the excluded parts below root.
func arrange(src []byte, root *part) []byte {
	a := &arranger{src: src}
	a.value(0, root)
	if len(a.nodes) == 0 {
		return src
	}
	a.out = make([]byte, 0, len(src))
	a.write(0, len(src), 0)
	return a.out
}

// value reads the value at i, and returns its end.
func (a *arranger) value(i int, p *part) int {
	switch a.src[i] {
	case '{':
		return a.object(i, p)
	case '[':
		return a.array(i, p)
	case '"':
		return a.text(i)
	}
	for i < len(a.src) && a.src[i] != ',' && a.src[i] != ']' && a.src[i] != '}' {
		i++
	}
	return i
}

// text returns the end of the string at i.
func (a *arranger) text(i int) int {
	for i++; a.src[i] != '"'; i++ {
		if a.src[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func (a *arranger) array(i int, p *part) int {
	i++
	for n := 0; a.src[i] != ']'; n++ {
		if a.src[i] == ',' {
			i++
		}
		start, before := i, len(a.nodes)
		next := p.element(n)
		i = a.value(i, next)
		if next != nil && next.excluded {
			a.nodes = append(a.nodes[:before], node{start: start, end: i, next: before + 1, excluded: true})
		}
	}
	return i + 1
}

func (a *arranger) object(i int, p *part) int {
	own, from := len(a.nodes), len(a.open)
	a.nodes = append(a.nodes, node{start: i})
	asIs := true
	i++
	for a.src[i] != '}' {
		if a.src[i] == ',' {
			i++
		}
		m := member{name: i, value: a.text(i) + 1, node: len(a.nodes)}
		next := p.member(a.nameOf(m))
		m.end = a.value(m.value, next)
		i = m.end
		if next != nil && next.excluded {
			a.nodes = a.nodes[:m.node]
			asIs = false
			continue
		}
		if last := len(a.open) - 1; asIs && last >= from && compare(a.nameOf(a.open[last]), a.nameOf(m)) > 0 {
			asIs = false
		}
		a.open = append(a.open, m)
	}
	i++
	members := a.open[from:]
	a.open = a.open[:from]
	if asIs && len(a.nodes) == own+1 {
		a.nodes = a.nodes[:own] // it is copied unchanged
		return i
	}
	if !asIs {
		slices.SortFunc(members, func(x, y member) int { return compare(a.nameOf(x), a.nameOf(y)) })
	}
	first := len(a.kept)
	a.kept = append(a.kept, members...)
	a.nodes[own] = node{start: a.nodes[own].start, end: i, first: first, last: len(a.kept), next: len(a.nodes)}
	return i
}

// nameOf is a member's name, without its quotes.
func (a *arranger) nameOf(m member) []byte { return a.src[m.name+1 : m.value-2] }

// write writes the part between two offsets; n is its first node.
func (a *arranger) write(from, to, n int) {
	for n < len(a.nodes) && a.nodes[n].start < to {
		at := a.nodes[n]
		a.out = append(a.out, a.src[from:at.start]...)
		if at.excluded {
			a.out = append(a.out, "null"...)
		} else {
			a.out = append(a.out, '{')
			for i, m := range a.kept[at.first:at.last] {
				if i > 0 {
					a.out = append(a.out, ',')
				}
				a.out = append(a.out, a.src[m.name:m.value]...)
				a.write(m.value, m.end, m.node)
			}
			a.out = append(a.out, '}')
		}
		from, n = at.end, at.next
	}
	a.out = append(a.out, a.src[from:to]...)
}

// compare orders names by their UTF-16 code units (RFC 8785, section 3.2.3).
func compare(a, b []byte) int {
	if bytes.IndexByte(a, '\\') < 0 && bytes.IndexByte(b, '\\') < 0 {
		i := 0
		for i < len(a) && i < len(b) && a[i] == b[i] {
			i++
		}
		for i > 0 && i < len(a) && i < len(b) && !utf8.RuneStart(a[i]) {
			i-- // to the beginning of the character
		}
		a, b = a[i:], b[i:]
	}
	for len(a) > 0 && len(b) > 0 {
		x, n := decode(a)
		y, m := decode(b)
		if x != y {
			return cmp.Or(cmp.Compare(unit(x), unit(y)), cmp.Compare(x, y))
		}
		a, b = a[n:], b[m:]
	}
	return cmp.Compare(len(a), len(b))
}

// unit is the first UTF-16 code unit of a character.
func unit(r rune) rune {
	if r < 0x10000 {
		return r
	}
	return 0xd800 + (r-0x10000)>>10
}

// decode returns the first character of a string, and how long it is.
func decode(s []byte) (rune, int) {
	if s[0] != '\\' {
		return utf8.DecodeRune(s)
	}
	switch s[1] {
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u': // control characters only: others are not escaped
		v, _ := strconv.ParseUint(string(s[2:6]), 16, 16)
		return rune(v), 6
	}
	return rune(s[1]), 2
}
