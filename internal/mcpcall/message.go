package mcpcall

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// Codes of JSON-RPC errors.
const (
	CodeParse          = -32700
	CodeInvalidRequest = -32600
	CodeInvalidParams  = -32602
	codeNoMethod       = -32601
	codeHeaders        = -32020 // headers do not match the content
	codeCapabilities   = -32021 // the client lacks capabilities
	codeVersion        = -32022 // of the protocol
	codeElicitation    = -32042 // the user has to visit a URL first
)

// method is that of calls of tools.
const method = "tools/call"

// Message is a parsed message of a client.
type Message struct {
	Call bool           // it is a call of a tool, and the only message
	ID   jsontext.Value // of a call
	Tool string         // that is called
	Args []byte         // its arguments, in canonical form
}

// Error is why content is refused: services could understand it in two ways, or it has
// a call that cannot be protected.
type Error struct {
	Code int
	Text string
	ID   jsontext.Value // nil if there is none
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Response returns the message that tells a client of the error.
func (e *Error) Response() []byte {
	id := e.ID
	if id == nil {
		id = jsontext.Value("null")
	}
	return []byte(`{"jsonrpc":"2.0","id":` + string(id) + `,"error":{"code":` + strconv.Itoa(e.Code) + `,"message":` + quote(e.Text) + `}}`)
}

func quote(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // of a string
	}
	return string(b)
}

// Read returns what a client has posted. The error is an *Error.
func Read(content []byte) (Message, error) {
	v := jsontext.Value(bytes.TrimSpace(content))
	if !v.IsValid() {
		return Message{}, &Error{Code: CodeParse, Text: "Not executed: the content is not one JSON text with each member once, in valid UTF-8."}
	}
	switch v.Kind() {
	case '{':
		return readOne(v)
	case '[':
		return Message{}, readBatch(v)
	}
	return Message{}, nil
}

// readBatch refuses a list of messages with a call of a tool among them.
func readBatch(v jsontext.Value) error {
	var all []json.RawMessage
	if err := json.Unmarshal(v, &all); err != nil {
		return &Error{Code: CodeParse, Text: "Not executed: " + err.Error()}
	}
	for _, one := range all {
		if jsontext.Value(one).Kind() != '{' {
			continue
		}
		m, err := readOne(jsontext.Value(one))
		if err != nil || m.Call {
			return &Error{Code: CodeInvalidRequest, Text: "Not executed: a call of a tool must be posted alone, not in a list of messages."}
		}
	}
	return nil
}

// readOne reads one message.
func readOne(v jsontext.Value) (Message, error) {
	top, err := members(v, "method", "id", "params")
	if err != nil {
		return Message{}, err
	}
	var called string
	if json.Unmarshal(top["method"], &called) != nil || called != method && !nearMethod(called) {
		return Message{}, nil
	}
	if called != method {
		return Message{}, &Error{Code: CodeInvalidRequest, Text: "Not executed: write the method as " + method + ", in lower case and with nothing around it."}
	}
	id := jsontext.Value(top["id"])
	if k := id.Kind(); len(id) == 0 || k != '"' && k != '0' {
		return Message{}, &Error{Code: CodeInvalidRequest, Text: "Not executed: a call of a tool needs an id, a text or a number."}
	}
	bad := func(err error) (Message, error) {
		if own, ok := errors.AsType[*Error](err); ok {
			own.ID = id
			return Message{}, own
		}
		return Message{}, &Error{Code: CodeInvalidParams, Text: "Not executed: " + err.Error(), ID: id}
	}
	if jsontext.Value(top["params"]).Kind() != '{' {
		return bad(errors.New("a call of a tool needs params"))
	}
	params, err := members(jsontext.Value(top["params"]), "name", "arguments", "_meta")
	if err != nil {
		return bad(err)
	}
	m := Message{Call: true, ID: id}
	if json.Unmarshal(params["name"], &m.Tool) != nil || m.Tool == "" {
		return bad(errors.New("a call of a tool needs its name"))
	}
	if m.Args, err = Arguments(params["arguments"]); err != nil {
		return bad(err)
	}
	return m, nil
}

// nearMethod reports whether a server may take a method for that of calls of tools: it
// differs only in case, or in spaces and characters that cannot be seen.
func nearMethod(called string) bool {
	seen := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, called)
	return strings.EqualFold(seen, method)
}

// members returns the members of an object. A name that differs from a known one only in
// case is refused, because some readers accept it.
func members(v jsontext.Value, known ...string) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(v, &all); err != nil {
		return nil, &Error{Code: CodeParse, Text: "Not executed: " + err.Error()}
	}
	for name := range all {
		for _, k := range known {
			if name != k && strings.EqualFold(name, k) {
				return nil, &Error{Code: CodeInvalidRequest, Text: "Not executed: write " + k + " for " + name + "."}
			}
		}
	}
	return all, nil
}

// Reply is a response of a server to a call.
type Reply struct {
	id     jsontext.Value
	member string // result or error
	value  jsontext.Value
}

// ReadReply returns the response that a message is; false if it is none.
func ReadReply(content []byte) (Reply, bool) {
	var all map[string]json.RawMessage
	if json.Unmarshal(content, &all) != nil || all["method"] != nil || len(all["id"]) == 0 {
		return Reply{}, false
	}
	r := Reply{id: jsontext.Value(all["id"]), member: "result", value: jsontext.Value(all["result"])}
	if r.value == nil {
		r.member, r.value = "error", jsontext.Value(all["error"])
	}
	return r, r.value != nil && r.value.Kind() == '{'
}

// For reports whether the response is to the message with that ID.
func (r Reply) For(id jsontext.Value) bool {
	var a, b string
	switch {
	case r.id.Kind() != id.Kind():
		return false
	case id.Kind() == '0':
		return Number(string(r.id)) == Number(string(id))
	}
	return json.Unmarshal(r.id, &a) == nil && json.Unmarshal(id, &b) == nil && a == b
}

// NotBegun reports whether the response, in an HTTP response with this status, says that the
// tool was not called: the server has refused the message, or asks for something first. Codes that any
// use of JSON-RPC has count with a status alone: a tool may pass on those of a service that it has called.
func (r Reply) NotBegun(status int) bool {
	var says struct {
		Code       int    `json:"code"`
		ResultType string `json:"resultType"`
	}
	if json.Unmarshal(r.value, &says) != nil {
		return false
	}
	if r.member == "result" {
		return says.ResultType == "input_required"
	}
	switch says.Code {
	case CodeParse, CodeInvalidRequest, codeNoMethod:
		return status >= 400 && status < 500
	case codeHeaders, codeCapabilities, codeVersion, codeElicitation:
		return true
	}
	return false
}

// Replay returns the response as one to another message, with that ID: it says in its
// _meta that it is a replay. An error has no place for that.
func (r Reply) Replay(id jsontext.Value) []byte {
	value := string(r.value)
	if r.member == "result" {
		value = marked(r.value)
	}
	return respond(id, r.member, value)
}

// Respond returns the response to a message with that ID that has this result.
func Respond(id jsontext.Value, result []byte) []byte { return respond(id, "result", string(result)) }

func respond(id jsontext.Value, member, value string) []byte {
	return []byte(`{"jsonrpc":"2.0","id":` + string(id) + `,"` + member + `":` + value + `}`)
}

// marked returns a result with the mark of a replay in its _meta; all else is as it was.
func marked(result jsontext.Value) string {
	const mark = `"` + ReplayedName + `":true`
	dec := jsontext.NewDecoder(bytes.NewReader(result), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() == '"' {
		var name jsontext.Token
		if name, err = dec.ReadToken(); err != nil {
			break
		}
		if name.String() != "_meta" {
			err = dec.SkipValue()
			continue
		}
		if dec.PeekKind() != '{' {
			return string(result)
		}
		var meta jsontext.Value
		if meta, err = dec.ReadValue(); err != nil {
			break
		}
		end := int(dec.InputOffset())
		return string(result[:end-len(meta)]) + first(meta, mark) + string(result[end:])
	}
	return first(result, `"_meta":{`+mark+`}`)
}

// first returns an object with one more member, in front.
func first(object []byte, member string) string {
	rest := bytes.TrimLeft(object[1:], " \t\r\n")
	if len(rest) > 0 && rest[0] != '}' {
		member += ","
	}
	return "{" + member + string(rest)
}
