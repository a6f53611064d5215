package messages

import (
	"testing"

	"github.com/stet-go/stet/internal/test/proof/crashtest"
	"github.com/stet-go/stet/store"
)

// sound is the trace of a message without faults, under the ID of a message that
// it emitted.
func sound(key, message string) (looked crashtest.Event, t crashtest.Trial) {
	charge := crashtest.Charge{ID: "a" + key, Scope: scope, Key: key}
	id := crashtest.OperationID(scope, key)
	looked = crashtest.Event{Kind: crashtest.Looked, ID: id, State: store.Completed.String(), Of: []string{charge.ID}}
	t.Events = []crashtest.Event{{Kind: crashtest.Wanted, ID: id, Scope: scope, Key: key}}
	t.Effects = []crashtest.Effect{{Charge: charge, Fence: 7, Emits: true}}
	t.Letters = []crashtest.Letter{{ID: message, Of: charge}, {ID: message, Of: charge}}
	return looked, t
}

func TestJudgeReportsBrokenPromises(t *testing.T) {
	for name, c := range map[string]struct {
		promise string
		change  func(*crashtest.Event, *crashtest.Trial)
	}{
		"nothing":     {"", func(*crashtest.Event, *crashtest.Trial) {}},
		"two effects": {crashtest.OneEffect, func(_ *crashtest.Event, t *crashtest.Trial) { t.Effects = append(t.Effects, t.Effects[0]) }},
		"a message was lost": {crashtest.Lost, func(l *crashtest.Event, t *crashtest.Trial) {
			l.State, l.Of, t.Effects, t.Letters = "none", nil, nil, nil
		}},
		"completed without an effect":         {crashtest.Acknowledged, func(_ *crashtest.Event, t *crashtest.Trial) { t.Effects = nil }},
		"the record is not completed":         {crashtest.Settled, func(l *crashtest.Event, _ *crashtest.Trial) { l.State = "failed" }},
		"the outcome is unknown":              {crashtest.Settled, func(l *crashtest.Event, _ *crashtest.Trial) { l.State = "unknown" }},
		"the outcome is of no effect":         {crashtest.Acknowledged, func(l *crashtest.Event, _ *crashtest.Trial) { l.Of = []string{"b"} }},
		"its emitted message was lost":        {crashtest.Emission, func(_ *crashtest.Event, t *crashtest.Trial) { t.Letters = nil }},
		"more than one ID":                    {crashtest.Emission, func(_ *crashtest.Event, t *crashtest.Trial) { t.Letters[1].ID = "n" }},
		"a message of a run not committed":    {crashtest.Emission, func(_ *crashtest.Event, t *crashtest.Trial) { t.Letters[0].Of.ID = "b" }},
		"emitted without settling with it":    {crashtest.Emission, func(l *crashtest.Event, _ *crashtest.Trial) { l.By = byVerifier }},
		"emitted by a run that emits nothing": {crashtest.Emission, func(_ *crashtest.Event, t *crashtest.Trial) { t.Effects[0].Emits = false }},
		"the ID of another's":                 {crashtest.Emission, func(_ *crashtest.Event, t *crashtest.Trial) { t.Letters[0].ID, t.Letters[1].ID = "other", "other" }},
		"an effect without a message": {crashtest.Scope, func(_ *crashtest.Event, t *crashtest.Trial) {
			t.Effects = append(t.Effects, crashtest.Effect{Charge: crashtest.Charge{ID: "x", Scope: scope, Key: "x"}})
		}},
	} {
		looked, trial := sound("order-1", "m")
		c.change(&looked, &trial)
		trial.Events = append(trial.Events, looked)
		looked, other := sound("order-2", "other")
		trial.Events = append(append(trial.Events, other.Events...), looked)
		trial.Effects, trial.Letters = append(trial.Effects, other.Effects...), append(trial.Letters, other.Letters...)
		found := false
		v := crashtest.Judge(trial, Law)
		for _, b := range v.Violations {
			found = found || b.Promise == c.promise
		}
		if found != (c.promise != "") || c.promise == "" && len(v.Violations) > 0 {
			t.Errorf("%s: the judge says %q; want %q", name, v.Violations, c.promise)
		}
	}
}
