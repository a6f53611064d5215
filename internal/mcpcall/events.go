package mcpcall

import "bytes"

// Events finds the messages in a stream of server-sent events. The zero Events is at the
// beginning of a stream.
type Events struct {
	line    []byte // that has not ended
	data    []byte // of the event that has not ended
	any     bool   // it has data
	cr      bool   // the last byte was a carriage return
	started bool
}

// Held is how many bytes it holds.
func (e *Events) Held() int { return len(e.line) + len(e.data) }

// Write reads more of the stream, and calls message with the data of each event that ends
// in it. The data is message's only until that returns.
func (e *Events) Write(p []byte, message func(data []byte)) {
	for len(p) > 0 {
		if e.cr && p[0] == '\n' {
			e.cr, p = false, p[1:]
			continue
		}
		e.cr = false
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			e.line = append(e.line, p...)
			return
		}
		e.line = append(e.line, p[:i]...)
		e.cr, p = p[i] == '\r', p[i+1:]
		e.end(message)
	}
}

// End is called at the end of the stream: an event that was not ended counts.
func (e *Events) End(message func(data []byte)) {
	if len(e.line) > 0 {
		e.end(message)
	}
	e.line = e.line[:0]
	e.end(message)
}

// end ends a line.
func (e *Events) end(message func(data []byte)) {
	line := e.line
	if !e.started {
		line, e.started = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")), true
	}
	if len(line) == 0 {
		if e.any {
			message(e.data)
		}
		e.data, e.any = e.data[:0], false
		e.line = e.line[:0]
		return
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	if string(name) == "data" {
		if e.any {
			e.data = append(e.data, '\n')
		}
		e.data, e.any = append(e.data, bytes.TrimPrefix(value, []byte(" "))...), true
	}
	e.line = e.line[:0]
}

// ReplyIn returns the response in the content of an HTTP response: JSON, or server-sent
// events.
func ReplyIn(stream bool, content []byte) (r Reply, ok bool) {
	if !stream {
		return ReadReply(content)
	}
	var e Events
	look := func(data []byte) {
		if one, is := ReadReply(data); is {
			r, ok = one, true
			r.id, r.value = bytes.Clone(r.id), bytes.Clone(r.value)
		}
	}
	e.Write(content, look)
	e.End(look)
	return r, ok
}
