package crashtest

import (
	"slices"

	"github.com/stet-go/stet/store"
)

// parts are those of an operation that have one effect each.
func (j *judge) parts(s *subject) []string {
	if parts, ok := j.Parts[s.asked.Name]; ok {
		return parts
	}
	return []string{""}
}

// effects are the IDs of effects, by part.
func (s *subject) effects() map[string][]string {
	all := make(map[string][]string)
	for _, e := range s.entries {
		all[e.Part] = append(all[e.Part], e.ID)
	}
	return all
}

// end judges the final record and the effects.
func (j *judge) end(s *subject) {
	all := s.effects()
	for part, ids := range all {
		if len(ids) > 1 {
			j.accuse(OneEffect, s, "%s has %d effects: %+v", part, len(ids), s.entries)
		}
		if part != j.Always && !slices.Contains(j.parts(s), part) {
			j.accuse(Scope, s, "%s is none of its parts", part)
		}
	}
	if j.Always != "" {
		if len(all[j.Always]) == 0 {
			j.accuse(Acknowledged, s, "it has no %s", j.Always)
		}
		delete(all, j.Always)
	}
	for _, ids := range all {
		j.v.Effects += len(ids)
	}
	j.v.Affected += min(len(all), 1)
	for i, g := range s.gave {
		if before := slices.IndexFunc(s.gave[:i], func(e Effect) bool { return e.Part == g.Part && e.ID != g.ID }); before >= 0 {
			j.accuse(Stable, s, "its step %s gave %s, and then %s", g.Part, s.gave[before].ID, g.ID)
		}
	}
	if s.looked == nil {
		return // of records that are not judged
	}
	state := s.looked.State
	j.v.Attempts += s.looked.Attempt
	switch {
	case !j.Ends(*s.asked, *s.looked) && state == none:
		j.accuse(Lost, s, "there is no record of it")
	case !j.Ends(*s.asked, *s.looked):
		j.accuse(Settled, s, "it is %s in the end, with fence %d, after %d attempts; open step: %q", state, s.looked.Fence, s.looked.Attempt, s.looked.OpenStep)
	case state == store.Completed.String():
		j.completed(s, all)
	case state == store.Failed.String() && s.asked.Cancels:
		j.cancelled(s, all)
	case state == unknown && s.looked.OpenStep != "":
		j.doubtful(s, all)
	case len(all) > 0 && (state == none || state == retryable):
		j.accuse(Acknowledged, s, "charged, and the record is %s", state)
	}
	if state == unknown {
		j.v.Doubtful++
	}
}

// completed judges an operation that has all its effects.
func (j *judge) completed(s *subject, all map[string][]string) {
	j.v.Completed++
	for _, part := range j.parts(s) {
		if len(all[part]) == 0 {
			j.accuse(Acknowledged, s, "completed without %s", "its effect "+part)
		}
	}
	if s.looked.Of == nil {
		return
	}
	j.names(s, s.looked.Of)
	for _, a := range s.replies(Outcome) {
		if a.out.Digest != s.looked.Digest {
			j.accuse(Stable, s, "told the outcome %s, and it is %s", a.out.Digest, s.looked.Digest)
		}
	}
}

// names judges that an outcome is of the effects that there are.
func (j *judge) names(s *subject, of []string) {
	all := s.effects()
	for _, part := range j.parts(s) {
		if len(all[part]) > 0 && !slices.Contains(of, all[part][0]) {
			j.accuse(Acknowledged, s, "its outcome is of %v, and its effect %s is %s", of, part, all[part][0])
		}
	}
}

// cancelled judges a cancelled operation: a single write or
// charge was not done, and no later step was begun.
func (j *judge) cancelled(s *subject, all map[string][]string) {
	j.v.Cancelled++
	if s.looked.Why != WhyCancelled {
		j.accuse(Settled, s, "it failed: %s", s.looked.Why)
	}
	if len(j.parts(s)) == 1 && len(all) > 0 || s.looked.OpenStep != "" {
		j.accuse(Acknowledged, s, "it was cancelled, with the effects %v, and the open step %q", all, s.looked.OpenStep)
	}
}

// doubtful judges an operation that may stay unknown, as a part must not be
// repeated: those before it were done, and those after it were not.
func (j *judge) doubtful(s *subject, all map[string][]string) {
	parts := j.parts(s)
	open := slices.Index(parts, s.looked.OpenStep)
	for i, part := range parts {
		if i < open && len(all[part]) != 1 || i > open && len(all[part]) > 0 {
			j.accuse(Acknowledged, s, "its step %s is open, and %s has %d effects", s.looked.OpenStep, part, len(all[part]))
		}
	}
	if len(s.replies(Outcome)) > 0 {
		j.accuse(Stable, s, "its outcome is unknown, and a client got one")
	}
}

// emitted judges the messages that have arrived: those of the run whose outcome
// stands, and of no other.
func (j *judge) emitted(s *subject) {
	j.v.Arrived += len(s.letters)
	for _, l := range s.letters {
		if other := j.senders[l.ID]; other != nil && other != s {
			j.accuse(Emission, s, "its message has the ID of one of %s", other.key)
		}
		j.senders[l.ID] = s
	}
	if s.looked == nil || s.looked.State != store.Completed.String() || len(s.looked.Of) == 0 || len(s.entries) == 0 {
		return
	}
	if !s.entries[0].Emits || s.looked.By != "" {
		if len(s.letters) > 0 {
			j.accuse(Emission, s, "it emitted a message without settling with it")
		}
		return
	}
	j.v.Emitted++
	if len(s.letters) == 0 {
		j.accuse(Emission, s, "its message was lost")
		return
	}
	j.v.Repeated += min(len(s.letters)-1, 1)
	for _, l := range s.letters {
		if l.ID == "" || l.ID != s.letters[0].ID {
			j.accuse(Emission, s, "its message came with more than one ID")
		}
		if !slices.Contains(s.looked.Of, l.Of.ID) {
			j.accuse(Emission, s, "its message is of a run that was not committed")
		}
	}
}
