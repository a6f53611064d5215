package stethttp

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

const (
	grpcWeb       = "application/grpc-web"
	connectStream = "application/connect+"

	maxEnd = 64 << 10 // bytes of the end of an RPC that are looked at, once decompressed

	// Of the frames of gRPC-Web and of Connect's streams.
	frameHead  = 5 // flags, and four bytes of length
	compressed = 0x01
	connectEnd = 0x02
	webTrailer = 0x80
)

// endOfRPC adds to a trailer the fields that gRPC-Web and Connect's streams send in a last
// frame of the content, for browsers that cannot read trailers. If the frame cannot be read,
// it adds the gRPC status unknown (2).
func endOfRPC(trailer http.Header, contentType string, content []byte) {
	flag := byte(webTrailer)
	switch {
	case strings.HasPrefix(contentType, connectStream):
		flag = connectEnd
	case strings.HasPrefix(contentType, grpcWeb+"-text"):
		return // in base64, which no server for net/http writes
	}
	for len(content) >= frameHead {
		flags, size := content[0], uint64(binary.BigEndian.Uint32(content[1:frameHead]))
		if size > uint64(len(content)-frameHead) {
			return
		}
		frame := content[frameHead : frameHead+size]
		content = content[frameHead+size:]
		if flags&flag == 0 {
			continue
		}
		end, ok := plainFrame(frame, flags)
		if ok && flag == connectEnd {
			ok = connectStatus(trailer, end)
		} else if ok {
			webTrailers(trailer, end)
		}
		if !ok {
			trailer.Set("Grpc-Status", "2")
		}
	}
}

// plainFrame returns the content of a frame.
func plainFrame(frame []byte, flags byte) ([]byte, bool) {
	if flags&compressed == 0 {
		return frame, true
	}
	r, err := gzip.NewReader(bytes.NewReader(frame)) // what else there is, is rare
	if err != nil {
		return nil, false
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxEnd+1))
	return plain, err == nil && len(plain) <= maxEnd
}

// webTrailers adds trailers that are written as in HTTP/1.1.
func webTrailers(trailer http.Header, text []byte) {
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		trailer.Set(name, strings.TrimSpace(value))
	}
}

// connectStatus adds the status that the end of one of Connect's streams has.
func connectStatus(trailer http.Header, text []byte) bool {
	var end struct {
		Error *struct{ Code string }
	}
	if err := json.Unmarshal(text, &end); err != nil {
		return false
	}
	if end.Error != nil {
		trailer.Set("Grpc-Status", connectCodes[end.Error.Code])
		if connectCodes[end.Error.Code] == "" {
			return false
		}
	}
	return true
}

// connectCodes are the numbers of gRPC's codes by the names that Connect gives them.
var connectCodes = map[string]string{
	"canceled": "1", "unknown": "2", "invalid_argument": "3", "deadline_exceeded": "4", "not_found": "5", "already_exists": "6",
	"permission_denied": "7", "resource_exhausted": "8", "failed_precondition": "9", "aborted": "10", "out_of_range": "11",
	"unimplemented": "12", "internal": "13", "unavailable": "14", "data_loss": "15", "unauthenticated": "16",
}
