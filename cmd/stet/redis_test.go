package main

import (
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestRedisIsAStoreLikeTheOthers(t *testing.T) {
	url := "redis://" + rig.Redis(t).Addr() + "/0"
	if status, found := examineJSON(t, url); !found["connects"].OK || !found["final"].OK || !found["replay"].OK {
		t.Errorf("doctor: status %d, %v", status, found)
	}
	if status, out, errs := command(t, "keys", "ls", "--store", url, "-o", "json"); status != exitOK || !strings.Contains(out, `"records":`) {
		t.Errorf("keys: status %d, %s%s", status, out, errs)
	}
	for url, want := range map[string]string{"redis://%zz": "redis URL", "redis://127.0.0.1:1": "refused"} {
		if status, _, errs := command(t, "keys", "ls", "--store", url); status == exitOK || !strings.Contains(errs, want) {
			t.Errorf("%s: status %d, %s", url, status, errs)
		}
	}
}
