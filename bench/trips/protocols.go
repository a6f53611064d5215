package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const maxMessage = 64 << 20 // bytes

// postgresProtocol is version 3 of PostgreSQL's, without encryption: chapters "Message Flow"
// and "Message Formats" of its documentation. Sync and a simple query ask; the server ends
// its answer to each with ReadyForQuery.
var postgresProtocol = protocol{
	begin: func(client *bufio.Reader, to io.Writer) ([]byte, error) {
		for {
			head, err := client.Peek(8) // length, which includes itself, and version or request
			if err != nil {
				return nil, err
			}
			const ssl, gss = 80877103, 80877104
			if code := binary.BigEndian.Uint32(head[4:]); code == ssl || code == gss {
				if _, err := client.Discard(8); err != nil {
					return nil, err
				}
				if _, err := to.Write([]byte{'N'}); err != nil {
					return nil, err
				}
				continue
			}
			return bytesOf(client, int64(binary.BigEndian.Uint32(head)))
		}
	},
	request: func(client *bufio.Reader) ([]byte, bool, error) {
		message, err := typed(client)
		return message, err == nil && (message[0] == 'S' || message[0] == 'Q'), err
	},
	response: func(server *bufio.Reader) ([]byte, bool, error) {
		message, err := typed(server)
		return message, err == nil && message[0] == 'Z', err
	},
	// The store's TestAnswerDoesNotWaitForTheRollback shows that no caller waits.
	behind: func(request []byte) bool { return request[0] == 'Q' && bytes.Contains(request, []byte("rollback")) },
}

// typed reads a message of PostgreSQL's: its type, its length and the rest.
func typed(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(5)
	if err != nil {
		return nil, err
	}
	return bytesOf(r, 1+int64(binary.BigEndian.Uint32(head[1:])))
}

func bytesOf(r *bufio.Reader, n int64) ([]byte, error) {
	if n < 0 || n > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// redisProtocol is RESP, versions 2 and 3. A command asks; each value that the server sends
// is an answer, unless it is a push.
var redisProtocol = protocol{
	request: func(client *bufio.Reader) ([]byte, bool, error) {
		b, err := value(client, nil)
		return b, true, err
	},
	response: func(server *bufio.Reader) ([]byte, bool, error) {
		b, err := value(server, nil)
		return b, err == nil && b[0] != '>', err
	},
}

var errRESP = errors.New("that is no RESP")

// value reads one value, with all that is in it, behind b.
func value(r *bufio.Reader, b []byte) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return b, err
	}
	b = append(b, line...)
	if len(line) < 3 {
		return b, errRESP
	}
	elements := 0
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
	case '$', '!', '=':
		n, err := strconv.ParseInt(string(line[1:len(line)-2]), 10, 64)
		if err != nil || n > maxMessage {
			return b, errRESP
		}
		if n >= 0 {
			text, err := bytesOf(r, n+2)
			return append(b, text...), err
		}
	case '*', '~', '>', '%':
		n, err := strconv.Atoi(string(line[1 : len(line)-2]))
		if err != nil || n > maxMessage {
			return b, errRESP
		}
		if elements = n; line[0] == '%' {
			elements = 2 * n
		}
	default:
		return b, errRESP
	}
	for range elements {
		if b, err = value(r, b); err != nil {
			return b, err
		}
	}
	return b, nil
}
