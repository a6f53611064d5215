package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/coding"
	"github.com/stet-go/stet/store"
)

// Read converts a stored outcome of any adapter to an RPC response. reply returns an empty
// message of the method's response type. If reply is nil, only outcomes of RPCs can be
// converted. never says that the operation never began. The trailer of a failure keeps gRPC's
// own retry policy from trying again.
func Read(out stet.Outcome, never bool, reply func() proto.Message) End {
	switch {
	case out.Gone:
		return ResultExpired.as(executed(out, never)).End("", 0)
	case out.Reason == store.ReasonTimedOut:
		return ProcessingTimedOut.End("", 0)
	case out.Reason == store.ReasonCancelled && never:
		return OperationCancelled.End("", 0)
	case out.Reason == store.ReasonCancelled:
		return OperationBrokenOff.End("", 0)
	case out.Reason == store.ReasonPanicked:
		return HandlerPanicked.End("", 0)
	case !out.Reason.Returned():
		return OperationFailed.End("", 0)
	case out.Adapter == store.AdapterGRPC:
		return exact(out, reply)
	}
	if st, ok := keptStatus(out); ok {
		return st
	}
	switch {
	case out.Status >= http.StatusBadRequest && (out.Adapter == store.AdapterHTTP || out.Adapter == store.AdapterSQL):
		return refused(out)
	case out.Failed:
		return failed(out)
	}
	return translated(out, reply)
}

// failed tells of a failure whose words no RPC can have.
func failed(out stet.Outcome) End {
	c := OperationFailed
	if c.Execution = executed(out, false); c.Execution == stet.NotExecuted {
		c.Text = "the operation failed; it had no effect, and does not run again"
	}
	return c.End("", 0)
}

func executed(out stet.Outcome, never bool) stet.Execution {
	switch {
	case never, out.Reason == store.ReasonNoEffect:
		return stet.NotExecuted
	case out.Failed:
		return stet.MayHaveExecuted
	}
	return stet.Executed
}

// Stored answers "did it execute?" for a status that an RPC has stored.
func Stored(out stet.Outcome) stet.Execution {
	if out.Reason == store.ReasonNoEffect {
		return stet.NotExecuted
	}
	return stet.Executed
}

// exact reads what an RPC has stored.
func exact(out stet.Outcome, reply func() proto.Message) End {
	e, ok := stored(out)
	switch {
	case !ok:
		return ResultUnreadable.as(executed(out, false)).End("", 0)
	case !e.OK():
		return Own(e, Stored(out), true)
	case reply != nil && e.Name != "" && e.Name != nameOf(reply):
		return foreign(out, fmt.Sprintf("executed, but its result is a %s, and not a %s", e.Name, nameOf(reply)))
	}
	return e
}

func nameOf(reply func() proto.Message) protoreflect.FullName {
	return reply().ProtoReflect().Descriptor().FullName()
}

// StatusForm is the form of what codec.Errors keep of an error that is a gRPC status: the
// bytes of its google.rpc.Status.
var StatusForm = Type("google.rpc.Status")

// keptStatus reads a failure of which a codec has kept the status.
func keptStatus(out stet.Outcome) (End, bool) {
	b, ok := coding.Kept(out.Trailer, StatusForm)
	if !ok || !out.Failed {
		return End{}, false
	}
	e := End{Status: new(status.Status)}
	if proto.Unmarshal(b, e.Status) != nil || e.OK() {
		return failed(out), true
	}
	return Own(e, executed(out, false), true), true
}

// refused tells of an HTTP response of 400 or above.
func refused(out stet.Outcome) End {
	c := Condition{"HTTP_RESPONSE", fromHTTP(out.Status), "", false, stet.Executed}
	if out.Failed {
		c.Execution = executed(out, false)
	}
	text := fmt.Sprintf("its result is an HTTP response with status %d", out.Status)
	var said struct{ Title, Detail string }
	if t, _, err := mime.ParseMediaType(out.Type); err == nil && t == "application/problem+json" && json.Unmarshal(out.Body, &said) == nil {
		if said := strings.Trim(strings.TrimSpace(said.Title)+": "+strings.TrimSpace(said.Detail), ": "); said != "" {
			text += ": " + said
		}
	}
	info := &errdetails.ErrorInfo{Reason: c.Reason, Domain: Domain, Metadata: map[string]string{
		ExecutionName: c.Execution.String(), RetryableName: "false", "http-status": strconv.Itoa(out.Status)}}
	return c.end(info, strings.ToValidUTF8(text, "\uFFFD"), 0, nil)
}

// foreign is the response for a result that cannot be converted.
func foreign(out stet.Outcome, text string) End {
	c := ResultForeign
	info := &errdetails.ErrorInfo{Reason: c.Reason, Domain: Domain, Metadata: map[string]string{
		ExecutionName: c.Execution.String(), RetryableName: "false", "adapter": out.Adapter.String(), "type": strings.ToValidUTF8(out.Type, "\uFFFD")}}
	return c.end(info, strings.ToValidUTF8(text, "\uFFFD"), 0, nil)
}

// translated tells of a success of another adapter: JSON, a message, or nothing.
func translated(out stet.Outcome, reply func() proto.Message) End {
	what := "of the adapter " + out.Adapter.String()
	if out.Adapter == store.AdapterHTTP || out.Adapter == store.AdapterSQL && out.Status != 0 {
		what = "an HTTP response"
	}
	if out.Type != "" {
		what += " of type " + out.Type
	}
	misfit := func(why string) End { return foreign(out, "executed, but its result is "+what+why) }
	switch {
	case reply == nil:
		return misfit("; and the message that this method responds with is not known")
	case out.Status >= 300 && (out.Adapter == store.AdapterHTTP || out.Adapter == store.AdapterSQL):
		return misfit(fmt.Sprintf(" with status %d", out.Status))
	case encoded(out):
		return misfit(" with a content coding")
	}
	m := reply()
	if name, ok := messageOf(out.Type); ok {
		if name != "" && name != m.ProtoReflect().Descriptor().FullName() || proto.Unmarshal(out.Body, m) != nil {
			return misfit(", which is not a " + string(nameOf(reply)))
		}
		return success(m)
	}
	body := bytes.TrimSpace(out.Body)
	switch {
	case len(body) == 0:
	case out.Type != "" && !isJSON(out.Type):
		return misfit("")
	case protojson.Unmarshal(body, m) == nil:
	case string(body) == "null":
		proto.Reset(m)
	default:
		return misfit(", which is not a " + string(nameOf(reply)) + " in JSON")
	}
	return success(m)
}

func encoded(out stet.Outcome) bool {
	coding, there := value(out.Header, "content-encoding")
	return there && coding != "" && !strings.EqualFold(coding, "identity")
}

func isJSON(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

// success is the end of an RPC that responds with m.
func success(m proto.Message) End {
	b, err := Marshal(m)
	if err != nil {
		return ResultUnreadable.End("", 0)
	}
	return End{Name: m.ProtoReflect().Descriptor().FullName(), Message: b}
}

// Marshal returns the bytes that a message is stored as: the same for equal messages.
func Marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}
