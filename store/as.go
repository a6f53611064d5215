package store

// Wrapper is a Store in front of another one, which As asks for what the wrapper
// cannot do itself.
type Wrapper interface {
	// Unwrap returns the store behind it.
	Unwrap() Store
}

// Base returns the store that s is in front of: itself, if it is in front of none.
func Base(s Store) Store {
	for {
		w, wraps := s.(Wrapper)
		if !wraps {
			return s
		}
		s = w.Unwrap()
	}
}

// As returns s as a T, such as a Watcher or a WorkStore: s itself if it is one, else
// the first that is one of the stores that it is in front of.
func As[T any](s Store) (t T, ok bool) {
	for {
		if t, ok = s.(T); ok {
			return t, true
		}
		w, wraps := s.(Wrapper)
		if !wraps {
			return t, false
		}
		s = w.Unwrap()
	}
}
