package stethttp

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// HeaderProgress is the field by which what does the work says which run it is: see
// Async.Status. Its value is a secret while the run continues.
const HeaderProgress = "Stet-Progress"

// maxReport bounds the content of a progress, in bytes.
const maxReport = 16 << 10

// What a token begins with.
const (
	repeatableToken = "r."
	onceToken       = "o."
)

// ProgressToken returns the value of HeaderProgress for a run of stet.Engine.Take, by its
// Lease.Claim. repeatable is whether it was taken as stet.Item.Repeatable.
func ProgressToken(c store.Claim, repeatable bool) string {
	if repeatable {
		return repeatableToken + c.String()
	}
	return onceToken + c.String()
}

// report stores what does the work says of its progress.
func (c *lookup) report() {
	var said struct {
		Fraction *float64 `json:"fraction"`
		Message  string   `json:"message"`
	}
	token := c.r.Header.Get(HeaderProgress)
	text, repeatable := strings.CutPrefix(token, repeatableToken)
	if !repeatable {
		text = strings.TrimPrefix(token, onceToken)
	}
	claim, err := store.ParseClaim(text)
	if err == nil && text == token {
		err = store.ErrInvalid
	}
	id, wrong := store.ParseID(c.r.URL.Path[strings.LastIndexByte(c.r.URL.Path, '/')+1:])
	if err != nil || wrong != nil || id != claim.ID {
		c.m.refuse(c.w, &operationNotFound, "", 0) // as to anybody who has no token
		return
	}
	d := json.NewDecoder(io.LimitReader(c.r.Body, maxReport))
	if err := d.Decode(&said); err != nil || d.More() || said.Fraction == nil || !(*said.Fraction >= 0 && *said.Fraction <= 1) {
		c.m.refuse(c.w, &progressInvalid, "", 0)
		return
	}
	cancelling, err := c.m.engine.Progress(c.r.Context(), claim, repeatable, *said.Fraction, said.Message)
	switch stet.KindOf(err) {
	case 0:
	case stet.KindFenced:
		c.m.refuse(c.w, &fencedProgress, "", 0)
		return
	default:
		c.m.refuse(c.w, &statusUnavailable, "", c.m.o.RetryAfter)
		return
	}
	h := c.w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Cache-Control", noStore)
	_, _ = c.w.Write(line(struct { // the worker may have left
		Cancelling bool `json:"cancelling"`
	}{cancelling}))
}
