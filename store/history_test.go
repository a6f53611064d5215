package store

import "testing"

func TestHistoryOf_LeavesOutAnEarlierUseOfTheKey(t *testing.T) {
	entry := func(fence int64, attempt int, data string) HistoryEntry {
		return HistoryEntry{Fence: fence, Attempt: attempt, Data: []byte(data)}
	}
	for name, c := range map[string]struct {
		fence   int64
		attempt int
		all     []HistoryEntry
		want    int
	}{
		"no entries":                      {5, 1, nil, 0},
		"of this claim":                   {5, 1, []HistoryEntry{entry(5, 1, "a"), entry(5, 1, "b")}, 2},
		"added twice":                     {5, 1, []HistoryEntry{entry(5, 1, "a"), entry(5, 1, "a")}, 1},
		"of each attempt":                 {9, 3, []HistoryEntry{entry(2, 1, "a"), entry(5, 2, "b"), entry(9, 3, "c")}, 3},
		"of the attempts before":          {9, 3, []HistoryEntry{entry(2, 1, "a"), entry(5, 2, "b")}, 2},
		"of an earlier use":               {9, 1, []HistoryEntry{entry(5, 1, "old")}, 0},
		"of an earlier use, and this one": {9, 1, []HistoryEntry{entry(2, 1, "old"), entry(5, 2, "old"), entry(9, 1, "a")}, 1},
		"of a later attempt before":       {9, 2, []HistoryEntry{entry(4, 3, "old"), entry(9, 2, "a")}, 1},
		"before a job was taken":          {9, 1, []HistoryEntry{entry(4, 0, "a"), entry(9, 1, "b")}, 2},
		"of some attempts":                {9, 5, []HistoryEntry{entry(2, 1, "a"), entry(7, 4, "b")}, 2},
		"of a newer claim":                {4, 1, []HistoryEntry{entry(9, 1, "newer")}, 0},
	} {
		if got := HistoryOf(Record{State: Unknown, Fence: c.fence, Attempt: c.attempt}, c.all); len(got) != c.want {
			t.Errorf("%s: %d entries, want %d", name, len(got), c.want)
		}
	}
	if got := HistoryOf(Record{}, []HistoryEntry{entry(0, 0, "a")}); got != nil {
		t.Errorf("without a record: %d entries", len(got))
	}
}
