package async

import (
	"slices"

	"github.com/stet-go/stet/internal/fault"
	"github.com/stet-go/stet/internal/test/proof/crashtest"
)

// The kinds of queues.
const (
	embedded    = "" // the store is the queue
	byRiver     = "river"
	byRabbitMQ  = "rabbitmq"
	byJetStream = "jetstream"
	processes   = 2 // of each role
)

// The roles of processes.
const (
	serves = "api"    // accepts
	works  = "worker" // runs
	both   = "both"
)

// flavour is a way to run accepted operations.
type flavour struct {
	name  string
	store string
	queue string
	kinds []string // of operations
	roles []string
	// dispatched: jobs of River are not inserted with the acceptance, but
	// afterwards.
	dispatched bool
}

var flavours = []flavour{
	{"sqlite", crashtest.SQLite, embedded, []string{inTx, safe}, []string{both}, false},
	{"river", crashtest.Postgres, byRiver, []string{inTx, safe}, []string{serves, works}, false},
	{"river-dispatched", crashtest.Postgres, byRiver, []string{inTx, safe}, []string{serves, works}, true},
	{"rabbitmq", crashtest.Postgres, byRabbitMQ, []string{inTx, safe}, []string{serves, works}, false},
	{"jetstream", crashtest.Redis, byJetStream, []string{outside}, []string{serves, works}, false},
	{"steps-sqlite", crashtest.SQLite, embedded, []string{safe, once}, []string{both}, false},
	{"steps-postgres", crashtest.Postgres, embedded, []string{safe, once}, []string{both}, false},
	{"mysql", crashtest.MySQL, embedded, []string{inTx, safe}, []string{both}, false},
	{"steps-mysql", crashtest.MySQL, embedded, []string{safe, once}, []string{both}, false},
}

// Flavours returns the names of the ways there are.
func Flavours() (names []string) {
	for _, f := range flavours {
		names = append(names, f.name)
	}
	return names
}

// carries reports whether operations are handed to a queue that is not the store.
func (f flavour) carries() bool { return f.queue != embedded }

// rare are points that few operations pass.
var rare = map[fault.Point]bool{
	fault.HeartbeatBefore: true, fault.HeartbeatAfter: true, fault.ReleaseBefore: true, fault.ReleaseAfter: true,
	fault.TakeoverBefore: true, fault.TakeoverAfter: true,
}

// stale are the points where a process is stopped: its later calls are calls that no client
// waits for any more.
var stale = []fault.Point{fault.ClaimAfter, fault.HandlerBefore, fault.HandlerAfter, fault.StepBefore, fault.SettleBefore, chargeBefore, inStep}

// points are where processes of a role are killed: all that they pass.
func (f flavour) points(role string) (ps []fault.Point) {
	if role != works {
		ps = append(ps, fault.ResponseBefore, fault.ResponseAfter)
		if f.acceptsInTx() {
			ps = append(ps, fault.CommitBefore, fault.CommitAfter)
		} else {
			ps = append(ps, fault.AcceptBefore, fault.AcceptAfter)
		}
	}
	if role == serves {
		if f.dispatches() {
			ps = append(ps, enqueueBefore, enqueueAfter)
		}
		return ps
	}
	ps = append(ps, fault.ClaimBefore, fault.ClaimAfter, fault.HandlerBefore, fault.HandlerAfter, fault.StepBefore, fault.StepAfter,
		fault.SettleBefore, fault.SettleAfter, fault.ReleaseBefore, fault.ReleaseAfter, fault.HeartbeatBefore, fault.HeartbeatAfter,
		fault.SweepBefore, fault.SweepAfter, chargeBefore, chargeAfter)
	if slices.Contains(f.kinds, outside) {
		ps = append(ps, fault.TakeoverBefore, fault.TakeoverAfter)
	} else {
		ps = append(ps, fault.CommitBefore, fault.CommitAfter, inStep)
	}
	if f.carries() {
		ps = append(ps, enqueueBefore, enqueueAfter)
	}
	if f.queue == byRabbitMQ || f.queue == byJetStream {
		ps = append(ps, told)
	}
	slices.Sort(ps)
	return slices.Compact(ps)
}

// dispatches reports whether processes that only accept have a dispatcher.
func (f flavour) dispatches() bool { return f.carries() && (f.queue != byRiver || f.dispatched) }

// acceptsInTx reports whether operations are accepted in the transaction of a row
// of the service's own.
func (f flavour) acceptsInTx() bool { return f.queue == byRiver }
