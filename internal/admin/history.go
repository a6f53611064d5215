package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/stet-go/stet/observe"
	"github.com/stet-go/stet/store"
)

// History lists the troubles of an operation. A list of operations has only the last reason.
type History struct {
	LastReason   string                 `json:"last_reason,omitempty"`
	Entries      []observe.HistoryEntry `json:"history,omitempty"`       // oldest first
	NoHistory    bool                   `json:"no_history,omitempty"`    // the store has none
	HistoryError string                 `json:"history_error,omitempty"` // why it could not be read
}

// HistoryLine returns an entry as one line of text.
func HistoryLine(e observe.HistoryEntry) string {
	parts := []string{e.At.Format(time.RFC3339), fmt.Sprintf("attempt %d", e.Attempt), e.Event}
	if e.Sealed {
		return strings.Join(append(parts, "encrypted with a key that this process does not have"), "  ")
	}
	if e.Reason != "" {
		parts = append(parts, string(e.Reason))
	}
	if e.Host != "" || e.Process != 0 {
		parts = append(parts, fmt.Sprintf("process %d on %s", e.Process, printable(e.Host)))
	}
	if e.Status != 0 {
		parts = append(parts, fmt.Sprintf("status %d", e.Status))
	}
	for _, text := range []string{e.By, e.Text, e.Error} {
		if text != "" {
			parts = append(parts, printable(text))
		}
	}
	return strings.Join(parts, "  ")
}

func (l *Local) hasHistory() bool {
	_, ok := store.As[store.HistoryStore](l.Engine.Store())
	return ok
}

// addHistory adds the history of a record. A history that cannot be read hides no record.
func (l *Local) addHistory(ctx context.Context, r *Record, rec store.Record) {
	if r.NoHistory = !l.hasHistory(); r.NoHistory || rec.Damage != "" || rec.State == store.None {
		return
	}
	all, err := l.Engine.History(ctx, store.MaxHistory, rec)
	if err != nil {
		r.HistoryError = err.Error()
		return
	}
	r.Entries = all[0]
	r.LastReason = lastReason(all[0])
}

// reason returns the last reason of a record's history, for the audit.
func (l *Local) reason(ctx context.Context, rec store.Record) string {
	var r Record
	l.addHistory(ctx, &r, rec)
	return r.LastReason
}

// lastReason returns the reason of the last entry, but for answers of a verifier: these do not
// say what went wrong.
func lastReason(all []observe.HistoryEntry) (reason string) {
	for _, e := range all {
		switch {
		case e.Sealed:
			reason = "encrypted"
		case e.Reason != observe.ReasonVerifier || reason == "":
			reason = string(e.Reason)
		}
	}
	return reason
}

// listedEntries is how many entries of a history a list reads.
const listedEntries = 4

// addReasons adds the last reason of each record of a page, unless it is completed or alive. found
// has the records by ID.
func (l *Local) addReasons(ctx context.Context, page *Page, found map[string]store.Record) {
	if page.NoHistory = !l.hasHistory(); page.NoHistory {
		return
	}
	var recs []store.Record
	var places []int
	for i, r := range page.Records {
		rec := found[r.ID]
		alive := rec.State == store.Running && rec.LeaseLeft > 0
		if rec.Damage == "" && rec.State != store.Completed && !alive {
			recs, places = append(recs, rec), append(places, i)
		}
	}
	if len(recs) == 0 {
		return
	}
	all, err := l.Engine.History(ctx, listedEntries, recs...)
	if err != nil {
		page.HistoryError = err.Error()
		return
	}
	for i, list := range all {
		page.Records[places[i]].LastReason = lastReason(list)
	}
}
