package stethttp

import (
	"log/slog"
	"strings"

	"github.com/stet-go/stet/store"
)

// refText returns a reference as a record can keep it (stet.Op.Ref), and why it cannot
// keep it whole: then a verifier that looks by the reference would find nothing, or
// something else.
func refText(ref string) (text, why string) {
	switch {
	case len(ref) > store.MaxLabel:
		return "", "it is longer than store.MaxLabel"
	case store.LabelText(ref) != ref:
		return "", "it is not UTF-8 without control characters"
	case strings.HasPrefix(ref, "sealed:"):
		return "", "it begins with the mark of an encrypted one"
	}
	return ref, ""
}

// refer looks for the operation's reference in the content.
func (c *call) refer() {
	if c.m.refPointer == nil || c.op.Ref != "" || len(c.r.Header["Content-Encoding"]) > 0 {
		return
	}
	found := follow(c.sent, c.m.refPointer)
	text, why := refText(found.value)
	switch {
	case !found.there:
		return
	case found.twice:
		why = "a name on the way to it is in the content more than once"
	case !found.text && !found.number:
		why = "it is neither text nor a number"
	}
	if why != "" {
		c.m.log().WarnContext(c.r.Context(), "stethttp: an operation has no reference: the value at Options.RefPointer cannot be one",
			slog.String("id", c.m.engine.ID(c.op.Scope, c.op.Key).String()), slog.String("why", why))
		return
	}
	c.op.Ref = text
}
