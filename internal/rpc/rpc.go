// Package rpc converts the outcome of an RPC to its stored form, and an outcome of any adapter
// to an RPC response. stetgrpc and stetconnect share it, so that each replays the outcomes of
// the other.
//
// An RPC's outcome has the adapter store.AdapterGRPC. Status is the HTTP status of its code,
// 200 for OK; Type is application/protobuf with the full name of the message in the
// parameter proto; Body is the message; Header is the header metadata. Trailer is the
// trailing metadata, and as gRPC sends them on the wire grpc-status, and unless that is 0
// grpc-message and grpc-status-details-bin, the google.rpc.Status. Names are in lower
// case; values of names that end in -bin are in base64.
package rpc

import (
	"encoding/base64"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/again"
	"github.com/stet-go/stet/store"
)

// Metadata is header or trailing metadata. Names are in lower case, and values of names
// that end in -bin are raw bytes, as in gRPC for Go.
type Metadata = map[string][]string

// End is how an RPC ended.
type End struct {
	// Status is nil, or has code 0, for a success.
	Status *status.Status
	// Name is the full name of the message, Message its bytes. Both are empty after a
	// failure.
	Name    protoreflect.FullName
	Message []byte

	Header, Trailer Metadata
}

// OK reports whether the RPC succeeded.
func (e End) OK() bool { return e.Status.GetCode() == int32(code.Code_OK) }

const (
	statusName  = "grpc-status"
	messageName = "grpc-message"
	detailsName = "grpc-status-details-bin"

	// PushbackName is trailing metadata that tells gRPC's own retry policy when to
	// try again; -1 is never.
	PushbackName = "grpc-retry-pushback-ms"

	binarySuffix = "-bin"
	mediaType    = "application/protobuf"
	nameParam    = "proto"
)

// Type is the media type of a message, which has its full name as a parameter.
func Type(name protoreflect.FullName) string {
	if name == "" {
		return mediaType
	}
	return mediaType + "; " + nameParam + "=" + string(name)
}

// messageOf returns what Type was given; ok says that the media type is that of a
// message of Protocol Buffers.
func messageOf(contentType string) (name protoreflect.FullName, ok bool) {
	t, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", false
	}
	switch t {
	case mediaType, "application/x-protobuf", "application/proto", "application/vnd.google.protobuf":
	default:
		return "", false
	}
	for _, param := range []string{nameParam, "messagetype", "message"} {
		if params[param] != "" {
			return protoreflect.FullName(params[param]), true
		}
	}
	return "", true
}

// Outcome returns the stored form of an end. An end that is not a success has failed.
func (e End) Outcome() stet.Outcome {
	e.Status = Valid(e.Status)
	out := stet.Outcome{Adapter: store.AdapterGRPC, Status: HTTPStatus(e.Status.GetCode()), Header: fields(e.Header), Trailer: fields(e.Trailer)}
	add := func(name, value string) {
		out.Trailer = append(out.Trailer, store.Field{Name: name, Values: []string{value}})
	}
	add(statusName, strconv.Itoa(int(e.Status.GetCode())))
	if e.OK() {
		out.Type, out.Body = Type(e.Name), e.Message
		return out
	}
	out.Failed = true
	add(messageName, escape(e.Status.GetMessage()))
	// It cannot fail: the text is valid, and details are bytes with a name.
	if b, err := proto.Marshal(e.Status); err == nil {
		add(detailsName, base64.RawStdEncoding.EncodeToString(b))
	}
	return out
}

// Valid returns a status that can be sent: its texts are UTF-8, and its code is a number that
// gRPC can read, or else UNKNOWN, which its clients take it for.
func Valid(st *status.Status) *status.Status {
	_, err := proto.Marshal(st)
	if err == nil && st.GetCode() >= 0 {
		return st
	}
	st = proto.CloneOf(st)
	if st.GetCode() < 0 {
		st.Code = int32(code.Code_UNKNOWN)
	}
	st.Message = strings.ToValidUTF8(st.GetMessage(), "\uFFFD")
	for _, d := range st.GetDetails() {
		d.TypeUrl = strings.ToValidUTF8(d.GetTypeUrl(), "\uFFFD")
	}
	return st
}

// reserved are the names that are the transport's, or the server's of each response, and
// that are never stored.
var reserved = map[string]bool{
	"content-type": true, "content-length": true, "content-encoding": true, "accept-encoding": true, "connection": true, "keep-alive": true,
	"transfer-encoding": true, "te": true, "trailer": true, "upgrade": true, "user-agent": true, "date": true, "set-cookie": true,
	"grpc-status": true, "grpc-message": true, "grpc-status-details-bin": true, "grpc-encoding": true, "grpc-accept-encoding": true,
	"grpc-message-type": true, "grpc-timeout": true, ReplayedName: true, ExecutedName: true,
}

// fields returns the stored form of metadata.
func fields(md Metadata) []store.Field {
	var list []store.Field
	for _, name := range slices.Sorted(maps.Keys(md)) {
		values := md[name]
		name = strings.ToLower(name)
		if name == "" || name[0] == ':' || len(values) == 0 || reserved[name] {
			continue
		}
		f := store.Field{Name: name, Values: slices.Clone(values)}
		if strings.HasSuffix(name, binarySuffix) {
			for i, v := range f.Values {
				f.Values[i] = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
		}
		list = append(list, f)
	}
	return list
}

// metadata undoes fields.
func metadata(list []store.Field) (Metadata, bool) {
	md := make(Metadata, len(list))
	for _, f := range list {
		name := strings.ToLower(f.Name)
		if name == "" || name[0] == ':' || reserved[name] {
			continue
		}
		for _, v := range f.Values {
			if strings.HasSuffix(name, binarySuffix) {
				b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(v, "="))
				if err != nil {
					return nil, false
				}
				v = string(b)
			}
			md[name] = append(md[name], v)
		}
	}
	return md, true
}

func value(list []store.Field, name string) (string, bool) {
	for _, f := range list {
		if strings.EqualFold(f.Name, name) && len(f.Values) == 1 {
			return f.Values[0], true
		}
	}
	return "", false
}

// stored reads what Outcome has made. ok is false if it is damaged.
func stored(out stet.Outcome) (e End, ok bool) {
	var sound [2]bool
	e.Header, sound[0] = metadata(out.Header)
	e.Trailer, sound[1] = metadata(out.Trailer)
	text, there := value(out.Trailer, statusName)
	number, err := strconv.ParseUint(text, 10, 31)
	if !sound[0] || !sound[1] || !there || err != nil || out.Failed != (number != 0) {
		return End{}, false
	}
	if number == 0 {
		e.Name, ok = messageOf(out.Type)
		e.Message = out.Body
		return e, ok
	}
	e.Status = &status.Status{Code: int32(number)}
	if text, there = value(out.Trailer, messageName); there {
		if e.Status.Message, err = url.PathUnescape(text); err != nil {
			return End{}, false
		}
	}
	if text, there = value(out.Trailer, detailsName); there {
		b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
		var whole status.Status
		if err != nil || proto.Unmarshal(b, &whole) != nil || whole.Code != int32(number) {
			return End{}, false
		}
		e.Status = &whole
	}
	return e, true
}

// escape encodes the text of a status as gRPC does: percent-encoded but for visible
// ASCII and spaces.
func escape(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteString(strings.ToUpper(strconv.FormatUint(uint64(c)|0x100, 16)[1:]))
		}
	}
	return b.String()
}

// HTTPStatus is the HTTP status of a code, as google.rpc.Code has it.
func HTTPStatus(c int32) int {
	if s, ok := httpStatuses[code.Code(c)]; ok {
		return s
	}
	return http.StatusInternalServerError
}

var httpStatuses = map[code.Code]int{
	code.Code_OK: 200, code.Code_CANCELLED: 499, code.Code_UNKNOWN: 500, code.Code_INVALID_ARGUMENT: 400, code.Code_DEADLINE_EXCEEDED: 504,
	code.Code_NOT_FOUND: 404, code.Code_ALREADY_EXISTS: 409, code.Code_PERMISSION_DENIED: 403, code.Code_UNAUTHENTICATED: 401,
	code.Code_RESOURCE_EXHAUSTED: 429, code.Code_FAILED_PRECONDITION: 400, code.Code_ABORTED: 409, code.Code_OUT_OF_RANGE: 400,
	code.Code_UNIMPLEMENTED: 501, code.Code_INTERNAL: 500, code.Code_UNAVAILABLE: 503, code.Code_DATA_LOSS: 500,
}

// fromHTTP is the code of an HTTP status of 400 and above.
func fromHTTP(s int) code.Code {
	if c, ok := httpCodes[s]; ok {
		return c
	}
	if s >= http.StatusInternalServerError {
		return code.Code_INTERNAL
	}
	return code.Code_FAILED_PRECONDITION
}

var httpCodes = map[int]code.Code{
	400: code.Code_INVALID_ARGUMENT, 401: code.Code_UNAUTHENTICATED, 403: code.Code_PERMISSION_DENIED, 404: code.Code_NOT_FOUND,
	408: code.Code_DEADLINE_EXCEEDED, 409: code.Code_ABORTED, 416: code.Code_OUT_OF_RANGE, 422: code.Code_INVALID_ARGUMENT, 429: code.Code_RESOURCE_EXHAUSTED,
	499: code.Code_CANCELLED, 501: code.Code_UNIMPLEMENTED, 503: code.Code_UNAVAILABLE, 504: code.Code_DEADLINE_EXCEEDED,
}

// Refused marks an error whose code refuses the request as stet.Permanent, unless it has a mark: the
// service refuses the request, and a retry cannot change that. A transaction is then rolled
// back, and the refusal stored. docs/responses.md has the codes.
func Refused(err error, c int32) error {
	switch code.Code(c) {
	case code.Code_INVALID_ARGUMENT, code.Code_NOT_FOUND, code.Code_ALREADY_EXISTS, code.Code_FAILED_PRECONDITION, code.Code_OUT_OF_RANGE:
		if !again.MarksOf(err).Any() {
			return stet.Permanent(err)
		}
	}
	return err
}

// NameOf returns the name of the message that a media type of Type has; "" for none.
func NameOf(contentType string) protoreflect.FullName {
	name, _ := messageOf(contentType)
	return name
}
