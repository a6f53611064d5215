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
	status, _, err := c.conn.Post("/payments/7", key, "", body)
	if err == nil && status != 201 {
		err = fmt.Errorf("status %d", status)
	}
	return err
}
