package stet

// OutcomeOf returns the outcome that Do stores for what its function returned, v
// or err, and the error that its caller gets then, if any. It is for those who end
// runs themselves and want every reader to find one format: of a completed
// operation v as JSON, of a failed one the text of err as a JSON string.
func OutcomeOf(v any, err error) (Outcome, error) { return encodeOutcome(v, err) }

// Decode undoes OutcomeOf: it stores the value of a completed outcome in what v
// points to. The error of a failed one is of kind ErrFailed, with the same text;
// other errors are of kind ErrExpired, ErrDamaged or ErrInvalid (there is no
// outcome yet).
func (o Outcome) Decode(v any) error {
	switch {
	case !o.State.Settled():
		return invalid("there is no outcome yet: the state is %v", o.State)
	case o.Gone:
		return &Error{Kind: ErrExpired, Execution: Executed}
	}
	return decodeOutcome(o, v)
}
