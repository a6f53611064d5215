package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

func TestEnsembleIsAStoreLikeTheOthers(t *testing.T) {
	url := "zookeeper://" + strings.Join(rig.NewZooKeeper(t, 3).Addrs(), ",") + "/" + rig.Named(t, "-")
	status, found := examineJSON(t, url)
	for _, check := range []string{"connects", "durability", "clean-up", "final", "replay"} {
		if !found[check].OK {
			t.Errorf("doctor: status %d, %s: %+v", status, check, found[check])
		}
	}
	if status, out, errs := command(t, "keys", "ls", "--store", url, "-o", "json"); status != exitOK || !strings.Contains(out, `"records":`) {
		t.Errorf("keys: status %d, %s%s", status, out, errs)
	}
}

func TestURLOfAnEnsembleHasServersPathAndUser(t *testing.T) {
	for url, want := range map[string]string{
		"zookeeper://a":                         `[a:2181] {"" ""}`,
		"zookeeper://a:1,b,c:3/stet/x":          `[a:1 b:2181 c:3] {"/stet/x" ""}`,
		"zookeeper://a/":                        `[a:2181] {"" ""}`,
		"zookeeper://me:p%40ss%2Fword@a,b:2/x/": `[a:2181 b:2] {"/x" "me:p@ss/word"}`,
		"zookeeper://":                          "malformed",
		"zookeeper:///path":                     "malformed",
		"zookeeper://me:secret%zz@a/path":       "malformed",
		"zookeeper://me:secret@/path":           "malformed",
	} {
		servers, o, err := zookeeperServers(url)
		got := fmt.Sprintf("%v {%q %q}", servers, o.Path, o.Auth)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || strings.Contains(got, "secret") {
			t.Errorf("%s: %s; want %s", url, got, want)
		}
	}
}
