package rig

import "testing"

func TestEnsembleElectsAnotherLeader(t *testing.T) {
	z := NewZooKeeper(t, 3)
	leader, err := z.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	next, err := z.Leader(t.Context())
	if err != nil || next == leader {
		t.Fatalf("after the leader was killed, the leader is %v, %v", next, err)
	}
	if err := z.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if mode := zooKeeperMode(leader.port); mode != "follower" {
		t.Errorf("the killed leader is a %q again; want follower", mode)
	}
}
