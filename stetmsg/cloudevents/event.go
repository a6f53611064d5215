package cloudevents

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/stet-go/stet/stetmsg"
)

// Event is an event as a message has brought it.
type Event struct {
	// Attributes are all of its attributes but datacontenttype, by their names.
	Attributes map[string]string
	// ContentType is datacontenttype: the media type of Data, "" if it is not known.
	ContentType string
	Data        []byte
}

// Read returns the event in a message, in binary or in structured mode. ok is false if the
// message is none. An event that Identity refuses is an error, as is one whose attributes
// are not text, whole numbers or booleans, and a batch: see Split.
//
// In binary mode attributes beyond those of Identity are found if the envelope has Names.
func Read(e stetmsg.Envelope) (ev Event, ok bool, err error) {
	structured := mediaType(e.ContentType) == MediaType || mediaType(e.ContentType) == BatchMediaType
	prefix := prefixOf(e)
	if !structured && prefix == "" {
		return ev, false, nil
	}
	of, err := parse(e)
	if err == nil && structured {
		ev, err = of.whole(e.Body)
	}
	if err != nil {
		return ev, true, fmt.Errorf("cloudevents: %w", err)
	}
	if structured {
		return ev, true, nil
	}
	ev = Event{Attributes: map[string]string{}, ContentType: e.ContentType, Data: e.Body}
	names := []string{prefix + "specversion", prefix + "id", prefix + "source", prefix + "type"}
	if e.Names != nil {
		names = append(names, e.Names()...)
	}
	for _, name := range names {
		of, ok := strings.CutPrefix(name, prefix)
		v, there := e.Header(name)
		if !ok || !there || !named(of) || of == "datacontenttype" {
			continue
		}
		ev.Attributes[of] = attribute(prefix, v)
	}
	return ev, true, nil
}

// ofHTTP is the prefix of the bindings to HTTP and NATS.
const ofHTTP = "ce-"

// prefixOf is that of the attributes in the headers of a message; "": it has none.
func prefixOf(e stetmsg.Envelope) string {
	for _, prefix := range prefixes {
		if _, ok := e.Header(prefix + "id"); ok {
			return prefix
		}
	}
	return ""
}

// whole is an event in structured mode, with all of its attributes.
func (ev *event) whole(body []byte) (all Event, err error) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(body, &members); err != nil {
		return all, err
	}
	all = Event{Attributes: map[string]string{}, ContentType: ev.ContentType, Data: ev.data}
	for name, v := range members {
		switch {
		case name == "data" || name == "data_base64" || name == "datacontenttype":
			continue
		case !named(name):
			return all, fmt.Errorf("the attribute name %.40q must have only characters a to z and 0 to 9", name)
		}
		switch v.Kind() {
		case 'n': // as if it were not there
		case '"':
			var text string
			if err := json.Unmarshal(v, &text); err != nil {
				return all, err
			}
			all.Attributes[name] = text
		case '0', 't', 'f':
			if bytes.ContainsAny(v, ".E") || v.Kind() == '0' && bytes.Contains(v, []byte("e")) {
				return all, fmt.Errorf("the attribute %s is no whole number", name)
			}
			all.Attributes[name] = string(bytes.TrimSpace(v))
		default:
			return all, fmt.Errorf("the attribute %s is neither text, number nor boolean", name)
		}
	}
	if all.ContentType == "" && ev.Base64 == nil && len(ev.Data) > 0 {
		all.ContentType = "application/json" // of the JSON format
	}
	return all, nil
}

// named reports whether a name can be one of an attribute.
func named(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
}

// Header returns the header fields of the event in HTTP's binary mode, Content-Type among
// them. Data is the content.
func (ev Event) Header() http.Header {
	h := make(http.Header, len(ev.Attributes)+1)
	for name, v := range ev.Attributes {
		h.Set(ofHTTP+name, encode(v))
	}
	if ev.ContentType != "" {
		h.Set("Content-Type", ev.ContentType)
	}
	return h
}

// encode makes a value fit for a header field (HTTP Protocol Binding 1.0.2, section
// 3.1.3.2).
func encode(v string) string {
	var b strings.Builder
	for _, c := range []byte(v) {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

var (
	escaped = regexp.MustCompile(`(?s)\\(.)`)
	percent = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
)

// attribute is the value of an attribute in a header. With the prefix of HTTP it is
// percent-encoded, and old senders put it in quotes (HTTP Protocol Binding 1.0.2, section
// 3.1.3.2). A percent sign that encodes nothing is a literal one.
func attribute(prefix, v string) string {
	if prefix != ofHTTP {
		return v
	}
	if len(v) > 1 && v[0] == '"' && v[len(v)-1] == '"' {
		v = escaped.ReplaceAllString(v[1:len(v)-1], "$1")
	}
	return percent.ReplaceAllStringFunc(v, func(code string) string {
		b, _ := hex.DecodeString(code[1:]) // two digits
		return string(b)
	})
}
