package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	"github.com/stet-go/stet/internal/admin"
	"github.com/stet-go/stet/internal/problem"
	"github.com/stet-go/stet/store"
)

// maxRequest bounds a request in bytes: the largest result of any policy, in base64, and the
// other fields.
const maxRequest = store.MaxResultLimit/3*4 + 1<<16

// guarded serves what the caller is admitted to.
func (h *handler) guarded(serve func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, refused := h.admit(r)
		if refused != nil {
			if refused.Condition == admin.TokenRequired {
				w.Header().Set("WWW-Authenticate", admin.Challenge(r))
			}
			h.refuse(w, refused)
			return
		}
		if r.Method == http.MethodPost {
			if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
				h.refuse(w, &admin.Error{Condition: admin.NotJSON, Detail: "the Content-Type must be application/json"})
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		}
		answer, err := serve(r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
		if err != nil {
			h.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			return // the client has left
		}
	})
}

type callerKey struct{}

func callerOf(r *http.Request) caller { return r.Context().Value(callerKey{}).(caller) }

// fail answers with an error, and logs it if it is not the caller's.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*admin.Error](err)
	if !ok {
		e = &admin.Error{Condition: admin.StoreFailed, Cause: err}
	}
	if e.Condition.Status >= http.StatusInternalServerError && e.Cause != nil && r.Context().Err() == nil {
		h.o.ErrorLog.ErrorContext(r.Context(), "stet: an operator's request failed", slog.String("problem", e.Condition.Name), slog.Any("error", e.Cause))
	}
	h.refuse(w, e)
}

// refuse answers with a problem document (RFC 9457).
func (h *handler) refuse(w http.ResponseWriter, e *admin.Error) {
	doc := problem.Marshal(struct {
		Type   string        `json:"type"`
		Title  string        `json:"title"`
		Status int           `json:"status"`
		Detail string        `json:"detail,omitempty"`
		Now    *admin.Record `json:"now,omitempty"`
	}{admin.Base + e.Condition.Name, e.Condition.Title, e.Condition.Status, e.Detail, e.Now})
	problem.Write(w, e.Condition.Status, doc, e.RetryAfter)
}

func invalid(err error) error { return &admin.Error{Condition: admin.Invalid, Detail: err.Error()} }

// read decodes a request's content. Errors do not contain it.
func read(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("more than one document")
		}
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return &admin.Error{Condition: admin.TooLarge, Detail: "the request is larger than any response that can be stored"}
	}
	if err != nil {
		return &admin.Error{Condition: admin.Invalid, Detail: "the content must be one JSON object with only the fields of the API, each of its type"}
	}
	return nil
}

// about is what the page wants to know first.
func (h *handler) about(r *http.Request) (any, error) {
	c := callerOf(r)
	return struct {
		Store   string   `json:"store"`
		Who     string   `json:"who,omitempty"`
		Changes bool     `json:"changes"` // and results
		Classes []string `json:"classes"`
	}{h.o.Store, c.who, c.trusted, append([]string{}, h.o.Classes...)}, nil
}

// digest returns the names by which operations of a scope, and one of a key, are
// known. It is asked with a request's content: a key in a URL would be in logs.
func (h *handler) digest(r *http.Request) (any, error) {
	var asked struct{ Scope, Key string }
	if err := read(r, &asked); err != nil {
		return nil, err
	}
	if asked.Scope == "" || len(asked.Scope) > store.MaxScope || len(asked.Key) > store.MaxKey {
		return nil, invalid(errors.New("scope is required, and neither it nor key may be longer than a service accepts"))
	}
	answer := struct {
		Scope string `json:"scope_digest"`
		ID    string `json:"id,omitempty"`
	}{Scope: store.DigestScope(h.o.Namespace, asked.Scope).String()}
	if asked.Key != "" {
		answer.ID = store.Digest(h.o.Namespace, asked.Scope, asked.Key).String()
	}
	return answer, nil
}

func (h *handler) list(r *http.Request) (any, error) {
	q, err := admin.ParseQuery(r.URL.Query())
	if err != nil {
		return nil, invalid(err)
	}
	return h.admin.List(r.Context(), q)
}

func (h *handler) get(r *http.Request) (any, error) {
	id, err := admin.ParseID(r.PathValue("id"))
	if err != nil {
		return nil, invalid(err)
	}
	result := false
	for name, values := range r.URL.Query() {
		if name != "result" || len(values) != 1 || values[0] != "true" {
			return nil, invalid(errors.New("there is only result=true"))
		}
		result = true
	}
	c := callerOf(r)
	if result && !c.trusted {
		return nil, h.readOnly()
	}
	rec, err := h.admin.Get(r.Context(), id, false)
	switch {
	case err != nil:
		return nil, err
	case rec.State == store.None.String():
		return nil, &admin.Error{Condition: admin.NotFound, Detail: "there is no such operation, or it is no longer kept"}
	case !result:
		return rec, nil
	}
	e := admin.Entry{At: time.Now().UTC(), Actor: admin.Actor{Who: c.who, Via: via(r)}, Action: admin.Show, Result: admin.Done, Store: h.o.Store, ID: rec.ID, Scope: rec.Scope, Names: rec.Names,
		From: admin.Stood{State: rec.State, Fence: rec.Fence, Attempt: rec.Attempt}, To: rec.State}
	if err := h.audit(context.WithoutCancel(r.Context()), e); err != nil {
		return nil, &admin.Error{Condition: admin.AuditFailed, Detail: "the audit could not be written, so nothing is shown", Cause: err}
	}
	return h.admin.Get(r.Context(), id, true)
}

// via is how something was asked for, for the audit.
func via(r *http.Request) string { return "the admin API, from " + r.RemoteAddr }

func (h *handler) readOnly() error {
	detail := "results and changes take a token, which this process was started without; for stet proxy, set STET_ADMIN_TOKEN"
	if !h.o.Loopback {
		detail = "this token may only read; results and changes need a token that may change"
	}
	return &admin.Error{Condition: admin.ReadOnly, Detail: detail}
}

// change returns what serves an action.
func (h *handler) change(action string) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		c := callerOf(r)
		if !c.trusted {
			return nil, h.readOnly()
		}
		id, err := admin.ParseID(r.PathValue("id"))
		if err != nil {
			return nil, invalid(err)
		}
		var wanted admin.Change
		if err := read(r, &wanted); err != nil {
			return nil, err
		}
		wanted.Action, wanted.Via = action, via(r)
		wanted.Says, wanted.Actor = wanted.Actor, c.who // the name in the request is only a claim
		// The end of the request must not interrupt the change.
		return h.admin.Change(context.WithoutCancel(r.Context()), id, wanted)
	}
}

// Limits of a summary.
const (
	summaryPages = 8 // of store.MaxBrowse records: of expired or unknown operations, and of accepted ones
	summaryTime  = 5 * time.Second
)

// summary counts operations that are not settled, which stores find by an index, and stops after
// a time limit. It counts operations that may need an operator first, and operations for a
// worker last.
func (h *handler) summary(r *http.Request) (any, error) {
	answer := struct {
		Running          int        `json:"running"`
		Dead             int        `json:"dead"` // running, and their lease has run out
		Unknown          int        `json:"unknown"`
		Retryable        int        `json:"retryable"`
		Oldest           *time.Time `json:"oldest_unresolved,omitempty"`
		Complete         bool       `json:"complete"` // there are no more of these
		Accepted         int        `json:"accepted"`
		AcceptedComplete bool       `json:"accepted_complete"`
	}{}
	ctx, cancel := context.WithTimeout(r.Context(), summaryTime)
	defer cancel()
	var err error
	answer.Complete, err = h.count(ctx, func(rec admin.Record) {
		switch {
		case rec.Dead:
			answer.Dead++
		case rec.State == store.Running.String():
			answer.Running++
		case rec.State == store.Retryable.String():
			answer.Retryable++
		default:
			answer.Unknown++
		}
		stuck := rec.Dead || rec.State == store.Unknown.String()
		if at := rec.ClaimedAt; stuck && at != nil && (answer.Oldest == nil || at.Before(*answer.Oldest)) {
			answer.Oldest = at
		}
	}, store.Running, store.Unknown, store.Retryable)
	if err != nil {
		return nil, err
	}
	answer.AcceptedComplete, err = h.count(ctx, func(admin.Record) { answer.Accepted++ }, store.Accepted)
	if ctx.Err() != nil {
		err = nil // a partial count is still of use
	}
	if h.o.Activity != nil && answer.AcceptedComplete {
		h.o.Activity.count(func(p *point) { p.Waiting = &answer.Accepted })
	}
	return answer, err
}

// count calls each for records in these states, and says whether there are no more.
func (h *handler) count(ctx context.Context, each func(admin.Record), states ...store.State) (complete bool, err error) {
	return h.admin.Scan(ctx, store.Query{States: states}, summaryPages*store.MaxBrowse, each)
}
