package stethttp

import (
	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/coding"
)

// Large content of a response is copied once, from the handler's memory into memory that the
// engine keeps, and the caller gets it from there.

// reserve makes room for n more bytes of content, or for all that is to come, and returns
// what they are appended to. Large content whose length is known, or that comes in one
// piece as far as can be told, is in memory that the engine then keeps.
func (c *capture) reserve(n int) []byte {
	all := max(len(c.buf.b)+n, int(min(c.declared, int64(c.limit))))
	known := c.declared >= 0 || n > maxPooled
	if c.keeps && known && !c.buf.own && all > max(maxPooled, cap(c.buf.b)) && all <= c.limit && c.declared <= int64(c.limit) {
		return c.buf.keep(n, all)
	}
	c.buf.grow(all - len(c.buf.b))
	return c.buf.b
}

// gives reports whether the memory of a finished response's content is the engine's, to
// keep. It is if there is hardly more of it than content: small content is copied. It is not
// lent any more then.
func (c *capture) gives() bool {
	if n := len(c.buf.b); c.keeps && maxPooled < n && n <= c.limit && n >= cap(c.buf.b)/8*7 {
		c.buf.own = true
	}
	return c.buf.own
}

// given is an outcome whose body the engine keeps. It is only called for large ones, as it
// has them on the heap.
func given(out stet.Outcome) stet.Outcome {
	coding.Give(&out)
	return out
}
