package admin

import (
	"net/http"
	"time"
)

// Base is what the names of conditions follow in the type of a problem document
// (RFC 9457).
const Base = "https://github.com/stet-go/stet/blob/main/internal/dashboard/README.md#"

// Condition is a type of problem.
type Condition struct {
	Name   string
	Status int
	Title  string
}

// Conditions lists all conditions.
var Conditions = []*Condition{
	Invalid, NotJSON, TooLarge, NotFound, NoPage, NoMethod, TokenRequired, ReadOnly, CrossOrigin, HostRefused,
	Changed, NotPossible, LeaseAlive, Unreadable, NoBrowser, StoreFailed, AuditFailed,
}

// The conditions.
var (
	Invalid       = &Condition{"invalid", http.StatusBadRequest, "Invalid request"}
	NotJSON       = &Condition{"json-required", http.StatusUnsupportedMediaType, "JSON required"}
	TooLarge      = &Condition{"too-large", http.StatusRequestEntityTooLarge, "Request too large"}
	NotFound      = &Condition{"not-found", http.StatusNotFound, "No such operation"}
	NoPage        = &Condition{"no-such-page", http.StatusNotFound, "No such page"}
	NoMethod      = &Condition{"method-not-allowed", http.StatusMethodNotAllowed, "Method not allowed"}
	TokenRequired = &Condition{"token-required", http.StatusUnauthorized, "Bearer token required"}
	ReadOnly      = &Condition{"read-only", http.StatusForbidden, "Read-only without a token"}
	CrossOrigin   = &Condition{"cross-origin", http.StatusForbidden, "Cross-origin request refused"}
	HostRefused   = &Condition{"host-refused", http.StatusForbidden, "Only requests from this host are allowed"}
	Changed       = &Condition{"record-changed", http.StatusConflict, "Record changed since it was shown"}
	NotPossible   = &Condition{"not-possible", http.StatusConflict, "Not possible in this state"}
	LeaseAlive    = &Condition{"lease-alive", http.StatusConflict, "Operation still running"}
	Unreadable    = &Condition{"result-unreadable", http.StatusInternalServerError, "Stored result unreadable"}
	NoBrowser     = &Condition{"not-supported", http.StatusNotImplemented, "Not supported by the store"}
	StoreFailed   = &Condition{"store-unavailable", http.StatusServiceUnavailable, "Store unavailable"}
	AuditFailed   = &Condition{"audit-failed", http.StatusInternalServerError, "Audit log could not be written"}
)

// Error says what went wrong in words for an operator, with no key or body in it.
type Error struct {
	Condition  *Condition
	Detail     string
	Now        *Record       // the present record, if that is the cause
	RetryAfter time.Duration // when to ask again; 0 when nothing is known
	Cause      error         // may name hosts: for logs, and for who has the store's URL anyway
}

// Error implements error.
func (e *Error) Error() string {
	text := e.Detail
	if text == "" {
		text = e.Condition.Title
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap gives errors.Is and errors.As the cause.
func (e *Error) Unwrap() error { return e.Cause }

func refuse(c *Condition, detail string) *Error { return &Error{Condition: c, Detail: detail} }
