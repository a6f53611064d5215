package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
)

// connection is a client of HTTP/1.1 that costs next to nothing, so that what is measured
// is the server.
type connection struct {
	conn net.Conn
	r    *bufio.Reader
	b    []byte
}

func dialHTTP(addr string) (caller, error) {
	conn, err := net.Dial("tcp", addr) //nolint:noctx // it is this machine
	if err != nil {
		return nil, err
	}
	return &connection{conn: conn, r: bufio.NewReader(conn)}, nil
}

func (c *connection) close() { _ = c.conn.Close() }

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
	c.b = append(c.b[:0], "POST /payments/7 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: "...)
	c.b = append(c.b, key...)
	c.b = append(c.b, "\r\n"...)
	c.b = append(c.b, header...)
	c.b = append(c.b, "Content-Length: "...)
	c.b = strconv.AppendInt(c.b, int64(len(body)), 10)
	c.b = append(append(c.b, "\r\n\r\n"...), body...)
	if _, err := c.conn.Write(c.b); err != nil {
		return 0, nil, err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	if len(line) < 12 {
		return 0, nil, fmt.Errorf("the response begins with %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, err
	}
	length := -1
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, nil, err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(": ")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, nil, err
			}
		}
	}
	if length < 0 {
		return 0, nil, fmt.Errorf("a response of status %d without Content-Length", status)
	}
	if cap(c.b) < length {
		c.b = make([]byte, length)
	}
	_, err = io.ReadFull(c.r, c.b[:length])
	return status, c.b[:length], err
}
