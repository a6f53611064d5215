// Package mcpcall has the parts for tool calls of the Model Context Protocol that stetmcp and
// the sidecar share: the names in _meta, the fingerprint of a call, and the texts of refusals.
// It imports no library of the protocol.
package mcpcall

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/canonical"
	"github.com/stet-go/stet/store"
)

// Names in _meta. By the rules of the protocol a name of one's own begins with a domain
// of one's own, reversed: this is that of GitHub's pages of the project.
const (
	prefix = "io.github.stet-go/"
	// KeyName is the member of a call's _meta with the key.
	KeyName = prefix + "idempotency-key"
	// ReplayedName is true in the _meta of results that are replays.
	ReplayedName = prefix + "replayed"
	// ProtectedName is false in the _meta of results of calls that ran unprotected.
	ProtectedName = prefix + "protected"
	// ProblemName is a Problem in the _meta of stet's own results.
	ProblemName = prefix + "problem"
	// PolicyName is in the _meta of a tool: how two calls of it are distinguished.
	PolicyName = prefix + "idempotency"
)

// maxKey is the greatest length of a key, as in HTTP.
const maxKey = 255

// CheckKey returns why a key is invalid, or "".
func CheckKey(key string) string {
	switch {
	case key == "":
		return "The key is empty."
	case len(key) > maxKey:
		return "The key is longer than 255 bytes."
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] >= 0x7f {
			return "The key has a byte that is not visible ASCII."
		}
	}
	return ""
}

// CheckName returns an error for a name in _meta that the protocol does not allow.
func CheckName(name string) error {
	before, after, prefixed := bytes.Cut([]byte(name), []byte("/"))
	if !prefixed {
		before, after = nil, before
	}
	labels := bytes.Split(before, []byte("."))
	for _, label := range labels {
		if prefixed && (!inner(label, "-") || !letter(label[0])) {
			return errors.New("its prefix is not a list of labels like com.example/")
		}
	}
	if prefixed && len(labels) > 1 && (string(labels[1]) == "modelcontextprotocol" || string(labels[1]) == "mcp") {
		return errors.New("its prefix is reserved by the protocol")
	}
	switch name {
	case "progressToken", "traceparent", "tracestate", "baggage":
		return errors.New("the protocol has another meaning for it: hosts send another value with each try, or the same one with many calls")
	}
	if !inner(after, "-_.") {
		return errors.New("it does not begin and end with a letter or a digit, or has other characters than these, '-', '_' and '.' in between")
	}
	return nil
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// inner reports whether b begins and ends with a letter or digit, and has nothing but
// these and others in between.
func inner(b []byte, others string) bool {
	if len(b) == 0 || bytes.IndexByte([]byte(others), b[0]) >= 0 || bytes.IndexByte([]byte(others), b[len(b)-1]) >= 0 {
		return false
	}
	for _, c := range b {
		if !letter(c) && (c < '0' || c > '9') && bytes.IndexByte([]byte(others), c) < 0 {
			return false
		}
	}
	return true
}

// errArguments refuses arguments that readers may interpret differently.
var errArguments = errors.New("the arguments are not one JSON object with each member once, in valid UTF-8")

var arrange = func() func(string, []byte) ([]byte, error) {
	f, err := canonical.JSON()
	if err != nil {
		panic(err)
	}
	return f
}()

// Arguments returns the arguments of a call in canonical form: as package canonical, and
// numbers as Number. No arguments, null and {} are the same.
func Arguments(raw []byte) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return []byte("{}"), nil
	}
	if raw[0] != '{' || !jsontext.Value(raw).IsValid() {
		return nil, errArguments
	}
	b, err := arrange("application/json", raw)
	if err != nil {
		return nil, err
	}
	return numbers(b), nil
}

// numbers brings the numbers of a canonical JSON text into one form.
func numbers(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case c == '"':
			end := i + 1
			for b[end] != '"' {
				if b[end] == '\\' {
					end++
				}
				end++
			}
			out = append(out, b[i:end+1]...)
			i = end + 1
		case c == '-' || c >= '0' && c <= '9':
			end := i + 1
			for end < len(b) && bytes.IndexByte([]byte("+-.eE0123456789"), b[end]) >= 0 {
				end++
			}
			out = append(out, Number(string(b[i:end]))...)
			i = end
		default:
			out = append(out, c)
			i++
		}
	}
	return out
}

// Fingerprint is the digest of what a call asks for. args is what Arguments returned.
func Fingerprint(tool string, args []byte) store.Fingerprint {
	return store.NewCanonicalFingerprint([]byte("tools/call"), []byte(tool), args)
}

// DeriveKey is the key of a call that names none: from its session, tool and arguments.
func DeriveKey(session, tool string, args []byte) string {
	return stet.DeriveKey("mcp tools/call", session, tool, string(args))
}
