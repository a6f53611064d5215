package stethttp

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// HeaderProgress is the header with which a worker names its run in a report of progress: see
// Async.Status. Its value is a secret while the run continues.
const HeaderProgress = "Stet-Progress"

// maxReport bounds the content of a progress, in bytes.
const maxReport = 16 << 10

// The prefixes of a token.
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

// report stores the progress of a run.
func (c *lookup) report() {
	var progress struct {
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
		c.m.refuse(c.w, &operationNotFound, "", 0) // the same without a token
		return
	}
	d := json.NewDecoder(io.LimitReader(c.r.Body, maxReport))
	if err := d.Decode(&progress); err != nil || d.More() || progress.Fraction == nil || !(*progress.Fraction >= 0 && *progress.Fraction <= 1) {
		c.m.refuse(c.w, &progressInvalid, "", 0)
		return
	}
	cancelling, err := c.m.engine.Progress(c.r.Context(), claim, repeatable, *progress.Fraction, progress.Message)
	switch stet.KindOf(err) {
	case 0:
	case stet.KindFenced:
		c.m.refuse(c.w, &fencedProgress, "", 0)
		return
	default:
		c.m.refuse(c.w, &statusUnavailable, "", c.m.o.RetryAfter)
		return
	}
	writeJSON(c.w, http.StatusOK, line(struct {
		Cancelling bool `json:"cancelling"`
	}{cancelling}))
}
