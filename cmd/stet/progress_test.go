package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressIsPrintedEveryTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		stop := progress(&out, func() string { return "at work" })
		time.Sleep(5 * time.Second)
		stop()
		if got := out.String(); got != "2s: at work …\n4s: at work …\n" {
			t.Errorf("printed %q", got)
		}
	})
}
