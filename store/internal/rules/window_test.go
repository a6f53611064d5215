package rules_test

import (
	"errors"
	"testing"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/internal/rules"
)

func TestWindow_RefusesProgramsOlderThanItsMinimum(t *testing.T) {
	for w, oldest := range map[rules.Window]int{{}: 0, {4, 4}: 4, {5, 4}: 4, {6, 4}: 4, {6, 6}: 6, {4, 7}: 4} {
		for known := range 8 {
			if err := w.Refuse("t", known); (err == nil) != (known >= oldest) || err != nil && !errors.Is(err, store.ErrNewerTables) {
				t.Errorf("%+v, a program of version %d: %v", w, known, err)
			}
		}
	}
}
