package again

import "github.com/stet-go/stet"

// Marks are what an error says by stet.Retryable, Repeatable and Permanent.
type Marks struct{ Retryable, Repeatable, Permanent bool }

// Any reports whether there is one.
func (m Marks) Any() bool { return m != Marks{} }

// MarksOf returns the marks of an error of a handler. What a *stet.Error in it is marked
// with is of another operation.
func MarksOf(err error) (m Marks) {
	switch e := err.(type) { //nolint:errorlint // it walks the tree itself, as the engine does
	case *stet.Error:
	case interface{ Marks() (bool, bool, bool) }:
		m.Retryable, m.Repeatable, m.Permanent = e.Marks()
		return m.and(e.(interface{ Unwrap() error }).Unwrap()) //nolint:errorlint // the same
	case interface{ Unwrap() error }:
		return m.and(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			m = m.and(err)
		}
	}
	return m
}

func (m Marks) and(err error) Marks {
	also := MarksOf(err)
	return Marks{m.Retryable || also.Retryable, m.Repeatable || also.Repeatable, m.Permanent || also.Permanent}
}
