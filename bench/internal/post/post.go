// Package post is a client of HTTP/1.1 that costs next to nothing, so that measurements show
// the server: one connection, with one request at a time.
package post

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
)

// Conn is a connection that stays open.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
	b    []byte
}

// Dial connects to a server at host:port.
func Dial(addr string) (*Conn, error) {
	conn, err := net.Dial("tcp", addr) //nolint:noctx // it is this machine
	if err != nil {
		return nil, err
	}
	return &Conn{conn: conn, r: bufio.NewReader(conn)}, nil
}

// Close ends the connection.
func (c *Conn) Close() { _ = c.conn.Close() }

// Post sends JSON to a path with an Idempotency-Key and more header fields, each of which ends
// with CRLF. The content that it returns is valid until the next call. It reads responses
// that have a Content-Length.
func (c *Conn) Post(path, key, header string, body []byte) (status int, content []byte, err error) {
	c.b = append(append(c.b[:0], "POST "...), path...)
	c.b = append(c.b, " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: "...)
	c.b = append(c.b, key...)
	c.b = append(c.b, "\r\n"...)
	c.b = append(c.b, header...)
	c.b = append(c.b, "Content-Length: "...)
	c.b = strconv.AppendInt(c.b, int64(len(body)), 10)
	c.b = append(append(c.b, "\r\n\r\n"...), body...)
	if _, err := c.conn.Write(c.b); err != nil {
		return 0, nil, err
	}
	return c.response()
}

func (c *Conn) response() (status int, content []byte, err error) {
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
