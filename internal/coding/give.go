package coding

// A face may give the engine the memory of a body, instead of having it copied. These two are
// set by package stet, which has no exported name for them: a caller that is wrong about
// whose memory it is would change an outcome that stands.
var (
	// Give marks an outcome, a *stet.Outcome: its body may be kept as it is. Nothing may write
	// to that memory from then on, nor lend it. With another body the outcome has no mark.
	Give func(outcome any)
	// Keeps reports whether an engine, a *stet.Engine, keeps bodies as they are. One that
	// encrypts does not.
	Keeps func(engine any) bool
)
