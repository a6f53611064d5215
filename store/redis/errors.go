package redis

import (
	"errors"
	"fmt"

	"github.com/stet-go/stet/store"
)

var (
	errClosed = errors.New("redis: the store is closed")
	// errFormat is what an unreadable record gives.
	errFormat = fmt.Errorf("redis: the record is damaged, or was written by a newer version: %w", store.ErrDamaged)
)

// explain adds to an error, which may be nil, what failed and what to do.
func explain(step string, err error) error {
	if err == nil {
		return nil
	}
	what := ""
	switch code(err) {
	case "OOM":
		what = "refused, and nothing was done: the server is at its maxmemory; raise it: "
	case "MISCONF":
		what = "refused, and nothing was done: the server cannot write to its disk; look at its log: "
	case "READONLY":
		what = "refused, and nothing was done: the server is a replica; connect to the master: "
	case "NOREPLICAS":
		what = "refused, and nothing was done: the server has fewer replicas than its min-replicas-to-write: "
	case "NOPERM", "NOAUTH", "WRONGPASS":
		what = "refused, and nothing was done: the user needs the commands EVAL, EVALSHA, GET, SET, SETRANGE, EXISTS, PERSIST, PEXPIREAT, UNLINK, HSET, HGET, HMGET, ZADD, ZREM, ZSCORE, ZRANGE, ZRANGEBYSCORE, ZRANGEBYLEX, ZRANDMEMBER, TIME, PUBLISH, SUBSCRIBE, SCAN and INFO, and for Options.Replicas WAIT, on keys and channels of the prefix: "
	case "STETFORMAT", "WRONGTYPE": // another program has written to a key of the record
		return fmt.Errorf("redis: %s: %w", step, errFormat)
	}
	return fmt.Errorf("redis: %s: %s%w", step, what, err)
}
