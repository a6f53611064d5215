package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stet-go/stet"
	"github.com/stet-go/stet/store"
)

// Limits of a list.
const (
	DefaultLimit = store.DefaultBrowse
	MaxLimit     = 10_000 // records of a page
	MaxScan      = 100_000
	scanTime     = 5 * time.Second // then the list is not complete
)

// Query selects records, and one page of them. The zero Query selects the first page of all.
type Query struct {
	States               []store.State // none, and not Dead: all
	Dead                 bool          // also running operations with an expired lease
	Scope, ID            store.ID      // unless zero
	OlderThan, NewerThan time.Duration // since the claim, unless 0
	Names                Names         // each unless ""
	Key                  string        // of operations whose key is stored, unless ""; only for a Local
	Sort                 string        // one of Sorts, descending after "-"; default: oldest claim first
	Offset, Limit        int           // the page; a Limit of 0 is DefaultLimit
	After                string        // the Next of an incomplete list
}

// Page is a page of a list.
type Page struct {
	Records []Record `json:"records"`
	Total   int      `json:"total"` // records on all pages
	// Complete: all records of the store were read. Otherwise order and Total are those of the
	// records before Next.
	Complete bool   `json:"complete"`
	Next     string `json:"next,omitempty"` // continues an incomplete list: Query.After

	NoHistory    bool   `json:"no_history,omitempty"`    // the store has no histories
	HistoryError string `json:"history_error,omitempty"` // why the last reasons could not be read
}

var orders = map[string]func(a, b Record) int{
	"claimed":     func(a, b Record) int { return a.claimed().Compare(b.claimed()) },
	"state":       func(a, b Record) int { return strings.Compare(a.State, b.State) },
	"class":       func(a, b Record) int { return strings.Compare(a.Class, b.Class) },
	"name":        func(a, b Record) int { return strings.Compare(a.Name, b.Name) },
	"ref":         func(a, b Record) int { return strings.Compare(a.Ref, b.Ref) },
	"scope_label": func(a, b Record) int { return strings.Compare(a.ScopeLabel, b.ScopeLabel) },
	"attempt":     func(a, b Record) int { return cmp.Compare(a.Attempt, b.Attempt) },
}

// Sorts are the names of the orders.
func Sorts() (names []string) {
	for name := range orders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (r Record) claimed() time.Time {
	if r.ClaimedAt == nil {
		return time.Time{}
	}
	return *r.ClaimedAt
}

// sort orders records. Equal ones are ordered by claim and ID.
func (q Query) sort(records []Record) {
	name, descending := strings.CutPrefix(cmp.Or(q.Sort, "claimed"), "-")
	order := orders[name]
	slices.SortFunc(records, func(a, b Record) int {
		by := order(a, b)
		if descending {
			by = -by
		}
		return cmp.Or(by, a.claimed().Compare(b.claimed()), strings.Compare(a.ID, b.ID))
	})
}

// Check validates a query.
func (q Query) Check() error {
	if name := strings.TrimPrefix(q.Sort, "-"); q.Sort != "" && orders[name] == nil {
		return fmt.Errorf("sort: %.40q is none of %s, with or without a \"-\" before it", q.Sort, strings.Join(Sorts(), ", "))
	}
	if q.Limit < 0 || q.Limit > MaxLimit {
		return fmt.Errorf("limit: %d; give it 1 to %d", q.Limit, MaxLimit)
	}
	if q.Offset < 0 {
		return fmt.Errorf("offset: %d; it must not be negative", q.Offset)
	}
	return q.stored().Check()
}

// stored is the part of the query that a store answers.
func (q Query) stored() store.Query {
	s := store.Query{Scope: q.Scope, States: slices.Clone(q.States), OlderThan: q.OlderThan, NewerThan: q.NewerThan, After: q.After, Limit: store.MaxBrowse}
	if q.Dead && !slices.Contains(s.States, store.Running) {
		s.States = append(s.States, store.Running)
	}
	return s
}

// match reports whether the query selects a record that matches stored.
func (q Query) match(r Record) bool {
	state := len(q.States) == 0 && !q.Dead || r.Dead && q.Dead || slices.ContainsFunc(q.States, func(s store.State) bool { return s.String() == r.State })
	return state && matches(q.Names.Class, r.Class) && matches(q.Names.Name, r.Name) && matches(q.Names.ScopeLabel, r.ScopeLabel)
}

func matches(want, got string) bool { return want == "" || want == got }

// identified reports whether a record has the reference and the key of the query. An encrypted
// reference is read by the engine, if it has the key.
func (l *Local) identified(ctx context.Context, q Query, rec store.Record) (bool, error) {
	_, stored := store.CutScopeLabel(rec.Label.Ref)
	if q.Names.Ref == "" && q.Key == "" || q.Names.Ref == stored && q.Key == "" {
		return true, nil
	}
	kept := store.UnpackKept(stored)
	if strings.HasPrefix(stored, "sealed:") {
		st, err := l.Engine.Lookup(ctx, rec.ID)
		if errors.Is(err, store.ErrDamaged) {
			return false, nil
		}
		if err != nil {
			return false, &Error{Condition: StoreFailed, Detail: "the store could not return an operation with an encrypted reference", Cause: err}
		}
		kept = store.Kept{Ref: st.Record.Label.Ref, Key: st.Op.Key}
	}
	return matches(q.Names.Ref, kept.Ref) && matches(q.Key, kept.Key), nil
}

// List implements API.
func (l *Local) List(ctx context.Context, q Query) (Page, error) {
	if err := q.Check(); err != nil {
		return Page{}, refuse(Invalid, err.Error())
	}
	page, found := Page{Records: []Record{}}, map[string]store.Record{}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var unread error // the first record that could not be compared
	add := func(rec store.Record) {
		r := NewRecord(rec)
		if unread != nil || !q.match(r) {
			return
		}
		ok, err := l.identified(ctx, q, rec)
		if unread = err; ok {
			page.Records, found[r.ID] = append(page.Records, r), rec
		}
	}
	var err error
	if q.ID != (store.ID{}) {
		err = l.one(ctx, q, add)
	} else {
		page.Next, err = l.scan(ctx, q.stored(), MaxScan, add)
	}
	if err = cmp.Or(err, unread); err != nil {
		return Page{}, err
	}
	page.Total, page.Complete = len(page.Records), page.Next == ""
	q.sort(page.Records)
	from := min(q.Offset, page.Total)
	page.Records = page.Records[from:min(from+cmp.Or(q.Limit, DefaultLimit), page.Total)]
	l.addReasons(ctx, &page, found)
	return page, nil
}

// one calls add with the record of the query's ID, if that matches.
func (l *Local) one(ctx context.Context, q Query, add func(store.Record)) error {
	rec, err := l.read(ctx, q.ID, 0)
	if err == nil && (rec.State != store.None || rec.Damage != "") && q.stored().Match(rec, time.Since(rec.ClaimedAt)) {
		add(rec)
	}
	return err
}

// Scan calls each for about most records that match q, and reports whether there are no more.
func (l *Local) Scan(ctx context.Context, q store.Query, most int, each func(Record)) (complete bool, err error) {
	next, err := l.scan(ctx, q, most, func(rec store.Record) { each(NewRecord(rec)) })
	return next == "" && err == nil, err
}

// scan calls each for records that match q, and returns the cursor of the others; "" if there are
// none. It ends after most records, or after scanTime.
func (l *Local) scan(ctx context.Context, q store.Query, most int, each func(store.Record)) (next string, err error) {
	browser, err := l.browser()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	q.Limit = store.MaxBrowse
	for read, until := 0, time.Now().Add(scanTime); ; {
		found, err := browser.Browse(ctx, q)
		switch {
		case stet.KindOf(err) == stet.KindInvalid:
			return "", refuse(Invalid, err.Error())
		case err != nil && read > 0 && ctx.Err() != nil:
			return q.After, nil // a part of the list is still of use
		case err != nil:
			return "", &Error{Condition: StoreFailed, Detail: "the store could not list its operations", Cause: err}
		}
		for _, rec := range found.Records {
			each(rec)
		}
		read += len(found.Records)
		if q.After = found.Next; q.After == "" || read >= most || time.Now().After(until) {
			return q.After, nil
		}
	}
}

// dead is the name of the state of running operations with an expired lease.
const dead = "dead"

// StateNames are the names that AddState knows.
func StateNames() []string { return append(States(), dead) }

// AddState adds a state by its name, or "dead".
func (q *Query) AddState(name string) error {
	if name == dead {
		q.Dead = true
		return nil
	}
	s, err := ParseState(name)
	if err != nil {
		return fmt.Errorf("%.40q is none of %s", name, strings.Join(StateNames(), ", "))
	}
	q.States = append(q.States, s)
	return nil
}

// texts are the text fields of a query by their names in the URL.
func (q *Query) texts() map[string]*string {
	return map[string]*string{"class": &q.Names.Class, "name": &q.Names.Name, "ref": &q.Names.Ref, "scope_label": &q.Names.ScopeLabel, "sort": &q.Sort, "after": &q.After}
}

// values are a query as the API has it in its URL: no scopes and keys, only digests.
func values(q Query) url.Values {
	v := url.Values{}
	for _, s := range q.States {
		v.Add("state", s.String())
	}
	if q.Dead {
		v.Add("state", dead)
	}
	for name, id := range map[string]store.ID{"scope_digest": q.Scope, "id": q.ID} {
		if id != (store.ID{}) {
			v.Set(name, id.String())
		}
	}
	for name, d := range map[string]time.Duration{"older": q.OlderThan, "newer": q.NewerThan} {
		if d != 0 {
			v.Set(name, d.String())
		}
	}
	for name, n := range map[string]int{"limit": q.Limit, "offset": q.Offset} {
		if n != 0 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	for name, text := range q.texts() {
		if *text != "" {
			v.Set(name, *text)
		}
	}
	return v
}

// ParseQuery reads the URL values of a Remote's query. Unknown names are errors.
func ParseQuery(v url.Values) (q Query, err error) {
	for name, texts := range v {
		if len(texts) > 1 && name != "state" {
			return q, fmt.Errorf("%s: given more than once", name)
		}
		for _, text := range texts {
			if err := q.set(name, text); err != nil {
				return q, fmt.Errorf("%.40q: %w", name, err)
			}
		}
	}
	return q, q.Check()
}

// set sets a field from its URL value.
func (q *Query) set(name, text string) (err error) {
	if field, ok := q.texts()[name]; ok {
		*field = text
		return nil
	}
	switch name {
	case "state":
		for part := range strings.SplitSeq(text, ",") {
			if err := q.AddState(part); err != nil {
				return err
			}
		}
	case "scope_digest":
		q.Scope, err = ParseID(text)
	case "id":
		q.ID, err = ParseID(text)
	case "older":
		q.OlderThan, err = parseAge(text)
	case "newer":
		q.NewerThan, err = parseAge(text)
	case "offset":
		if q.Offset, err = strconv.Atoi(text); err != nil {
			err = errors.New("give it a number")
		}
	case "limit":
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > MaxLimit {
			err = fmt.Errorf("give it 1 to %d", MaxLimit)
		}
	default:
		err = errors.New("there are only state, class, name, ref, scope_label, scope_digest, id, older, newer, sort, offset, limit and after")
	}
	return err
}

func parseAge(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf(`give it a duration like "10m" or "36h"`)
	}
	return d, nil
}
