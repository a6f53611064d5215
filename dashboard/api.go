package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/internal/desk"
)

// maxRequest bounds what a request may hold, in bytes: the largest result that
// any policy keeps, in base64, and what is said about it.
const maxRequest = stet.MaxResultLimit/3*4 + 1<<16

// guarded serves what the caller is admitted to.
func (h *handler) guarded(serve func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, refused := h.admit(r)
		if refused != nil {
			if refused.Condition == desk.TokenRequired {
				w.Header().Set("WWW-Authenticate", desk.Challenge(r))
			}
			h.refuse(w, refused)
			return
		}
		if r.Method == http.MethodPost {
			if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
				h.refuse(w, &desk.Error{Condition: desk.NotJSON, Detail: "the Content-Type has to be application/json"})
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
	e, ok := errors.AsType[*desk.Error](err)
	if !ok {
		e = &desk.Error{Condition: desk.StoreFailed, Cause: err}
	}
	if e.Condition.Status >= http.StatusInternalServerError && e.Cause != nil && r.Context().Err() == nil {
		h.o.ErrorLog.ErrorContext(r.Context(), "stet: an operator's request failed", slog.String("problem", e.Condition.Name), slog.Any("error", e.Cause))
	}
	h.refuse(w, e)
}

// refuse answers with a problem document (RFC 9457).
func (h *handler) refuse(w http.ResponseWriter, e *desk.Error) {
	doc, err := json.Marshal(struct {
		Type   string       `json:"type"`
		Title  string       `json:"title"`
		Status int          `json:"status"`
		Detail string       `json:"detail,omitempty"`
		Now    *desk.Record `json:"now,omitempty"`
	}{desk.Base + e.Condition.Name, e.Condition.Title, e.Condition.Status, e.Detail, e.Now})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	w.Header().Set("Content-Type", "application/problem+json")
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(e.Condition.Status)
	_, _ = w.Write(append(doc, '\n')) // a client that has left hears nothing
}

func invalid(err error) error { return &desk.Error{Condition: desk.Invalid, Detail: err.Error()} }

// read decodes a request's content. What is in it is in no error.
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
		return &desk.Error{Condition: desk.TooLarge, Detail: "the request is larger than any response that is kept"}
	}
	if err != nil {
		return &desk.Error{Condition: desk.Invalid, Detail: "the content has to be one JSON object, of the fields that the API has, each of its type"}
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
	if asked.Scope == "" || len(asked.Scope) > stet.MaxScope || len(asked.Key) > stet.MaxKey {
		return nil, invalid(errors.New("scope is required, and neither it nor key may be longer than a service accepts"))
	}
	answer := struct {
		Scope string `json:"scope_digest"`
		ID    string `json:"id,omitempty"`
	}{Scope: stet.DigestScope(h.o.Namespace, asked.Scope).String()}
	if asked.Key != "" {
		answer.ID = stet.Digest(h.o.Namespace, asked.Scope, asked.Key).String()
	}
	return answer, nil
}

func (h *handler) list(r *http.Request) (any, error) {
	q, err := desk.ParseQuery(r.URL.Query())
	if err != nil {
		return nil, invalid(err)
	}
	return h.desk.List(r.Context(), q)
}

func (h *handler) get(r *http.Request) (any, error) {
	id, err := desk.ParseID(r.PathValue("id"))
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
	if result && !callerOf(r).trusted {
		return nil, readOnly()
	}
	rec, err := h.desk.Get(r.Context(), id, result)
	if err == nil && rec.State == stet.None.String() {
		err = &desk.Error{Condition: desk.NotFound, Detail: "there is no such operation, or it was forgotten"}
	}
	return rec, err
}

func readOnly() error {
	return &desk.Error{Condition: desk.ReadOnly, Detail: "results and changes take a token, which this process was started without; for stet proxy, set STET_ADMIN_TOKEN"}
}

// change returns what serves an action.
func (h *handler) change(action string) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		c := callerOf(r)
		if !c.trusted {
			return nil, readOnly()
		}
		id, err := desk.ParseID(r.PathValue("id"))
		if err != nil {
			return nil, invalid(err)
		}
		var wanted desk.Change
		if err := read(r, &wanted); err != nil {
			return nil, err
		}
		wanted.Action, wanted.Via = action, "the admin API, from "+r.RemoteAddr
		if c.who != "" {
			wanted.Actor = c.who // what they say of themselves counts for nothing
		}
		// What was begun does not end with who asked for it.
		return h.desk.Change(context.WithoutCancel(r.Context()), id, wanted)
	}
}

// Limits of a summary.
const (
	summaryPages = 8 // of stet.MaxBrowse records: of what may need somebody, and of what is accepted
	summaryTime  = 5 * time.Second
)

// summary counts what is not settled, which stores find without looking at all
// they have, and stops where that takes long. What may need somebody comes first, and
// is not lost among what only waits for a worker.
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
	answer.Complete, err = h.count(ctx, func(rec desk.Record) {
		switch {
		case rec.Dead:
			answer.Dead++
		case rec.State == stet.Running.String():
			answer.Running++
		case rec.State == stet.Retryable.String():
			answer.Retryable++
		default:
			answer.Unknown++
		}
		stuck := rec.Dead || rec.State == stet.Unknown.String()
		if at := rec.ClaimedAt; stuck && at != nil && (answer.Oldest == nil || at.Before(*answer.Oldest)) {
			answer.Oldest = at
		}
	}, stet.Running, stet.Unknown, stet.Retryable)
	if err != nil {
		return nil, err
	}
	answer.AcceptedComplete, err = h.count(ctx, func(desk.Record) { answer.Accepted++ }, stet.Accepted)
	if ctx.Err() != nil {
		err = nil // what was counted so far is something
	}
	return answer, err
}

// count calls each for records in these states, and says whether there are no more.
func (h *handler) count(ctx context.Context, each func(desk.Record), states ...stet.State) (complete bool, err error) {
	q := stet.Query{States: states, Limit: stet.MaxBrowse}
	for n := range summaryPages {
		page, err := h.desk.List(ctx, q)
		if err != nil && n > 0 && ctx.Err() != nil {
			return false, nil //nolint:nilerr // what was counted so far is something
		}
		if err != nil {
			return false, err
		}
		for _, rec := range page.Records {
			each(rec)
		}
		if q.After = page.Next; q.After == "" {
			return true, nil
		}
	}
	return false, nil
}
