package main

import (
	"fmt"

	"github.com/stet-go/stet/bench/internal/post"
)

// connection is a caller by HTTP.
type connection struct{ conn *post.Conn }

func dialHTTP(addr string) (caller, error) {
	conn, err := post.Dial(addr)
	return &connection{conn}, err
}

func (c *connection) close() { c.conn.Close() }

// call implements caller.
func (c *connection) call(key string) error {
	status, _, err := c.post(key, "")
	if err == nil && status != 201 {
		err = fmt.Errorf("status %d", status)
	}
	return err
}

// post sends a payment with more header fields, each of which ends with CRLF.
func (c *connection) post(key, header string) (status int, content []byte, err error) {
	return c.conn.Post("/payments/7", key, header, body)
}
