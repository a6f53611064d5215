package main

var zooKeeperTests = []string{"./store/zookeeper"}

// ensembleDefects are those of the ZooKeeper store.
var ensembleDefects = []defect{
	{"zookeeper: a stale read is an answer", "store/zookeeper/change.go",
		"func (v view) final() bool { return v.exists", "func (v view) final() bool { return true || v.exists", some("ThreeSessions", zooKeeperTests)},
	{"zookeeper: a read is not ordered after a write", "store/zookeeper/change.go",
		"if session != refusedIn || session == 0 {", "if false {", some("ThreeSessions", zooKeeperTests)},
	{"zookeeper: a heartbeat does not compare its place in the schedule", "store/zookeeper/change.go",
		"ops = append(ops, &zk.CheckVersionRequest{Path: was, Version: -1})", "_ = was", some("DelayedWrite", zooKeeperTests)},
	{"zookeeper: places in the schedule do not have the owner", "store/zookeeper/schedule.go",
		"n.Owner[:ownerPrefix])", "n.Owner[:0])", some("DelayedWrite", zooKeeperTests)},
	{"zookeeper: the fence is the version", "store/zookeeper/record.go",
		"Fence: n.stat.Czxid,", "Fence: int64(n.stat.Version) + 1,", some("Fence", zooKeeperTests)},
	{"zookeeper: a write that was not acknowledged had no effect", "store/zookeeper/change.go",
		"\t\tv.changed = unsure != nil\n", "\t\tunsure = nil\n", some("LostReplyIsUnknown", zooKeeperTests)},
	{"zookeeper: a closed connection had no effect", "store/zookeeper/call.go",
		"[]error{zk.ErrNoServer,", "[]error{zk.ErrNoServer, zk.ErrConnectionClosed, context.Canceled, context.DeadlineExceeded,", some("Unacknowledged", zooKeeperTests)},
	{"zookeeper: the clock is ahead", "store/zookeeper/clock.go",
		"c.offset = least - now", "c.offset = greatest - now + 5*time.Millisecond", some("Clock", zooKeeperTests)},
	{"zookeeper: a shortened lease keeps its place in the schedule", "store/zookeeper/claim.go",
		"to.schedule(v.now); to.Slot.Due > v.Slot.Due", "to.schedule(v.now); true", some("StoreKeeps/a_sweep", zooKeeperTests)},
	{"zookeeper: small requests are accepted", "store/zookeeper/zookeeper.go",
		"\treturn s.probe(ctx)\n", "\treturn nil\n", some("SmallRequests", zooKeeperTests)},
}
