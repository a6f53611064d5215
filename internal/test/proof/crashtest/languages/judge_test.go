package languages

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// replies are the replies to clients for a key.
type told struct {
	body    string   // of the first definite answer; "" for none
	others  []string // that differ from it
	unknown bool     // the last answer was that it is not known
	attempt int
}

// till has the replies to all clients, by key.
type till struct {
	mu   sync.Mutex
	keys map[string]*told
	// perhaps are the answers that an outcome was unknown, for the time being.
	perhaps int
}

func (c *till) asked(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys[key] == nil {
		c.keys[key] = &told{}
	}
	c.keys[key].attempt++
}

// heard notes an answer, and reports whether it is definite.
func (c *till) heard(key string, status int, body string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keys[key]
	k.unknown = strings.Contains(body, "#outcome-unknown")
	if k.unknown {
		c.perhaps++
	}
	switch {
	case status != 201 && status != 200: // 200: a consumer has made the payment
		return false
	case k.body == "":
		k.body = body
	case k.body != body:
		k.others = append(k.others, body)
	}
	return true
}

// findings are the judge's findings, by kind. Each line names a key.
type findings struct {
	Twice, Lost, Unknown, Changed []string
}

func (v findings) all() []string { return slices.Concat(v.Twice, v.Lost, v.Unknown, v.Changed) }

// judge compares the replies with the ledger: the payments of each key. unknown
// is how many records are unknown.
func judge(c *till, ledger map[string][]int64, unknown int) (v findings) {
	for key, k := range c.keys {
		paid := ledger[key]
		if len(paid) > 1 {
			v.Twice = append(v.Twice, fmt.Sprintf("%s was paid %d times: %v", key, len(paid), paid))
		}
		switch {
		case k.unknown:
			v.Unknown = append(v.Unknown, key+" is unknown at last")
		case k.body == "":
			v.Lost = append(v.Lost, key+" was asked for to the end, and has no outcome")
		case !slices.ContainsFunc(paid, func(id int64) bool { return k.body == fmt.Sprintf(`{"payment": %d}`, id) }):
			v.Lost = append(v.Lost, fmt.Sprintf("%s got %s, and the ledger has %v", key, k.body, paid))
		}
		if len(k.others) > 0 {
			v.Changed = append(v.Changed, fmt.Sprintf("%s got %s, and then %v", key, k.body, k.others))
		}
	}
	for key, paid := range ledger {
		if c.keys[key] == nil {
			v.Lost = append(v.Lost, fmt.Sprintf("%s was paid %v, and was not asked for", key, paid))
		}
	}
	for range unknown {
		v.Unknown = append(v.Unknown, "a record is unknown")
	}
	return v
}

func TestJudgeFindsEachBrokenPromise(t *testing.T) {
	for name, c := range map[string]struct {
		answers []string // of the key k; "" is none
		ledger  map[string][]int64
		unknown int
		want    findings
	}{
		"all is well":        {[]string{"", `{"payment": 1}`, `{"payment": 1}`}, map[string][]int64{"k": {1}}, 0, findings{}},
		"twice":              {[]string{`{"payment": 2}`}, map[string][]int64{"k": {1, 2}}, 0, findings{Twice: []string{"k was paid 2 times: [1 2]"}}},
		"reported, not done": {[]string{`{"payment": 1}`}, nil, 0, findings{Lost: []string{`k got {"payment": 1}, and the ledger has []`}}},
		"another's":          {[]string{`{"payment": 2}`}, map[string][]int64{"k": {1}}, 0, findings{Lost: []string{`k got {"payment": 2}, and the ledger has [1]`}}},
		"never":              {[]string{""}, map[string][]int64{"k": {1}}, 0, findings{Lost: []string{"k was asked for to the end, and has no outcome"}}},
		"not asked for":      {[]string{`{"payment": 1}`}, map[string][]int64{"k": {1}, "l": {2}}, 0, findings{Lost: []string{"l was paid [2], and was not asked for"}}},
		"reported otherwise": {[]string{`{"payment": 1}`, `{"payment":1}`}, map[string][]int64{"k": {1}}, 0, findings{Changed: []string{`k got {"payment": 1}, and then [{"payment":1}]`}}},
		"unknown":            {[]string{"problems.md#outcome-unknown"}, map[string][]int64{"k": {1}}, 0, findings{Unknown: []string{"k is unknown at last"}}},
		"unknown, then":      {[]string{"problems.md#outcome-unknown", `{"payment": 1}`}, map[string][]int64{"k": {1}}, 0, findings{}},
		"unknown records":    {[]string{`{"payment": 1}`}, map[string][]int64{"k": {1}}, 1, findings{Unknown: []string{"a record is unknown"}}},
	} {
		all := &till{keys: map[string]*told{}}
		for _, body := range c.answers {
			all.asked("k")
			status := 503
			if strings.HasPrefix(body, "{") {
				status = 201
			}
			all.heard("k", status, body)
		}
		if got := judge(all, c.ledger, c.unknown); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: the judge finds %+v; want %+v", name, got, c.want)
		}
	}
}
