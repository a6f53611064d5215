package storetest

import (
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stet-go/stet/internal/test/stettest"
	"github.com/stet-go/stet/store"
)

func TestMain(m *testing.M) {
	flag.Parse()
	patience, giveUp = 2*time.Second, 300*time.Millisecond // broken stores use them up
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "200ms"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func TestSmallStoreConforms(t *testing.T) { Run(t, smallHarness("").Harness) }

func TestSmallStoreConformsInTransactions(t *testing.T) { RunTx(t, smallHarness("")) }

type (
	fiveMethods struct {
		store.Store
		store.Limiter
	}
	workAlone struct {
		store.WorkStore
		store.Limiter
	}
	messagesAlone struct {
		store.OutboxStore
		store.Limiter
	}
)

// A store is tested with its abilities: with work alone or messages alone, and behind
// a wrapper that says so as if it were not there.
func TestStoresAreTestedByTheirAbilities(t *testing.T) {
	for name, show := range map[string]func(*small) store.Store{
		"the five methods alone": func(s *small) store.Store { return fiveMethods{s, s} },
		"work alone":             func(s *small) store.Store { return workAlone{s, s} },
		"messages alone":         func(s *small) store.Store { return messagesAlone{s, s} },
		"all, behind a wrapper":  func(s *small) store.Store { return wrapped{s} },
	} {
		t.Run(name, func(t *testing.T) {
			h := smallHarness("")
			if name != "messages alone" && name != "all, behind a wrapper" {
				h = smallHarness("sends nothing") // as a store does that keeps no messages
			}
			inner := h.New
			h.New = func(t testing.TB) store.Store { return show(inner(t).(*small)) }
			h.Damage = nil
			claims := make(map[string]bool)
			for _, c := range checks(h.Harness, h.New(t)) {
				claims[c.name] = true
			}
			for claim, want := range map[string]bool{
				"a free key is accepted":                                 name == "work alone" || name == "all, behind a wrapper",
				"messages are durable with the outcome, and due at once": name == "messages alone" || name == "all, behind a wrapper",
				"a sweep is bounded, and reports when there is more":     name == "all, behind a wrapper",
				"a watcher is woken when the run ends":                   name == "all, behind a wrapper",
			} {
				if claims[claim] != want {
					t.Errorf("%q is among the claims: %v; want %v", claim, claims[claim], want)
				}
			}
			Run(t, h.Harness)
		})
	}
}

// broken are bugs, each with a claim of the suite that it breaks. There may be
// more.
var broken = []struct{ bug, claim string }{
	{"claims without the existence check", "a refused claim changes nothing"},
	{"settles without the fence check", "a stale fence can write nothing"},
	{"restarts fences after forgetting", "fences grow over release, takeover and forgetting"},
	{"ignores a mismatch while running", "another fingerprint is refused in every state"},
	{"expires by the caller's clock", "only the store's clock decides that a lease has run out"},

	{"releases without the fence check", "a stale fence can write nothing"},
	{"extends without the fence check", "a stale fence can write nothing"},
	{"gives lapsed leases up", "an extension in each state follows the state machine"},
	{"stacks leases up", "an extension counts from now"},
	{"prolongs the lease for anyone", "a refused claim changes nothing"},
	{"claims in two steps", "of many claims of one free key exactly one is granted"},
	{"grants an owner twice", "an owner claims once"},
	{"does not recognise its owner", "the owner recognises its own claim"},
	{"does not recognise its owner", "one lost request or reply is not noticed"},
	{"runs expired claims again", "the next claim marks an expired claim unknown"},
	{"runs expired claims again", "an outcome that could not be written is never executed again"},
	{"marks unknown on a mismatch", "another fingerprint is refused in every state"},
	{"marks unknown on read", "reading changes nothing"},
	{"refuses a late settle", "a settle in each state follows the state machine"},
	{"refuses a repeated settle", "a settle that is repeated succeeds, with another outcome it is refused"},
	{"treats an expired result as never stored", "a settle after the result has expired is refused"},
	{"accepts a second outcome", "of many different outcomes under one fence exactly one is written"},
	{"returns expired results", "an expired result is gone, and the key still does not run"},
	{"forgets running records", "a claim clears the fields of its predecessor's release"},
	{"cuts results at NUL", "results come back byte for byte"},
	{"loses the status", "results come back byte for byte"},
	{"loses the type", "results come back byte for byte"},
	{"cuts the type", "results come back byte for byte"},
	{"gives a head where there is none", "results come back byte for byte"},
	{"compares bodies alone", "a settle that is repeated succeeds, with another outcome it is refused"},
	{"takes any result", "results up to the limit are kept, and no greater ones"},
	{"keeps less than it reports", "results up to the limit are kept, and no greater ones"},
	{"refuses a repeated release", "a release in each state follows the state machine"},
	{"takes no fingerprint for any", "the zero fingerprint matches only itself"},
	{"stores a discarded result as empty", "an outcome without its result is kept as such"},
	{"overwrites an expired result in place", "a result that a caller passed or received is never modified"},
	{"moves ClaimedAt when it settles", "times are in order"},
	{"runs expired claims again", "a claim in each state follows the state machine"},
	{"releases settled records", "a release in each state follows the state machine"},
	{"accepts a second outcome", "a settle in each state follows the state machine"},
	{"runs expired claims again", "a release that could not be written leaves the key unknown"},
	{"runs expired claims again", "a running or unknown record is never forgotten"},
	{"ends everything a moment late", "a released record is forgotten after its result's retention"},
	{"restarts fences after forgetting", "a settled record is forgotten after its tombstone, and not before"},
	{"restarts fences after forgetting", "fences grow over a sweep's purge"},
	{"counts attempts from zero", "a retryable key is granted with the next attempt"},
	{"counts attempts from zero", "a takeover survives a lost request or reply"},
	{"refuses a late settle", "a settle succeeds while others mark its claim unknown"},
	{"cuts results at NUL", "a lost heartbeat is made up for, a lost store ends the run"},
	{"cuts results at NUL", "a waiter gets the outcome although the store fails it"},
	{"cuts results at NUL", "with calls failing at random nothing runs twice and no outcome changes"},
	{"ignores a mismatch while running", "of many claims with different fingerprints one is granted, the rest are mismatches"},
	{"marks unknown on read", "a watcher of something that does not run returns at once"},
	{"sweeps live claims", "sweepers do not count or do anything twice"},
	{"counts attempts from zero", "random histories agree with the model"},
	{"drops the scope", "the scope is stored"},
	{"drops labels", "a record has the label of its last claim"},
	{"keeps the first label", "a record has the label of its last claim"},
	{"ignores ended contexts", "a call with an ended context does nothing"},
	{"wakes no watcher", "a watcher is woken when the run ends"},
	{"does not notify watchers", "a watcher is woken when the run ends"},
	{"sweeps live claims", "a sweep does due work only"},
	{"sweeps without a bound", "a sweep is bounded, and reports when there is more"},
	{"cuts IDs at NUL", "keys do not touch each other"},
	{"counts attempts from zero", "a free key is granted"},
	{"makes records on read", "reading a key that was never claimed leaves nothing behind"},
	{"adds the tombstone to the result", "an outcome is kept as long as it was asked for"},
	{"extends a hundred claims", "extending renews many leases at once and names the lost"},
	{"takes a hundred keys", "many keys are claimed and settled side by side"},
	{"releases settled records", "of a settle and a release under one fence exactly one comes through"},
	{"marks runs settled outside unknown", "an expired run that was settled outside is claimed again, and can write nothing more"},
	{"marks runs settled outside unknown", "a sweep makes an expired run retryable that was settled outside"},
	{"marks runs settled outside unknown", "a transaction runs after an expired run that was settled outside"},
	{"settles without the fence check", "an expired run that was settled outside is claimed again, and can write nothing more"},
	{"refuses a late settle", "a run that is settled outside may settle late, if no other has come"},
	{"takes each run as settled outside", "a run is settled outside only if its own claim allows it"},
	{"commits rows alone", "an unacknowledged commit is queried, not repeated"},
	{"commits rows without the record", "an error or a panic rolls everything back"},
	{"runs unknown records in transactions", "the function is called only where the state machine has an arrow"},
	{"lets no key pass a transaction", "a settled record is found while a transaction is open"},
	{"gives transactions a fence that is none", "a caller beside a transaction gets in flight, or waits"},
	{"gives transactions a fence that is none, and late", "a caller beside a transaction gets in flight, or waits"},
	{"settles outside of the transaction", "SettleTx commits with the caller's rows, or has no effect"},
	{"settles without the fence check", "SettleTx compares the fence"},
	{"settles twice in transactions", "SettleTx commits with the caller's rows, or has no effect"},
	{"ignores all states but the first", "a query shows each record that matches once"},
	{"loses a record between pages", "a query shows each record that matches once"},
	{"shows other scopes", "a query distinguishes scopes"},
	{"ignores ages", "a query knows how old a record is"},
	{"marks unknown on browse", "browsing changes nothing, and shows no result"},
	{"shows results", "browsing changes nothing, and shows no result"},
	{"browses by place", "records that stay come once while others come and go"},
	{"browses for nonsense", "a query that makes no sense is refused"},
	{"expires without the fence check", "Expire compares the fence, and changes only settled records"},
	{"forgets a record that an operator expires", "a result that an operator expires is gone, and the key still does not run"},
	{"reads damaged records", "a record that cannot be read is an error of its own, and hides no other"},
	{"fails the batch of a damaged record", "a record that cannot be read is an error of its own, and hides no other"},
	{"fails the batch of a damaged record", "Extend renews readable records, and names the others"},
	{"fails the batch of a damaged record", "a sweep skips damaged records, and does not change them"},
	{"fails the batch of a damaged record", "an operator sees damaged records, and can expire them"},
	{"fails the batch of a damaged record", "work that cannot be read is named, and holds up no other"},
	{"gives damaged claims up for lost", "Extend renews readable records, and names the others"},
	{"renews nothing past a damaged record", "Extend renews readable records, and names the others"},
	{"sweeps damaged records away", "a sweep skips damaged records, and does not change them"},
	{"shows nothing that is damaged", "an operator sees damaged records, and can expire them"},
	{"does not expire damaged records", "an operator sees damaged records, and can expire them"},
	{"frees keys of damaged records", "an operator sees damaged records, and can expire them"},
	{"does not put damaged work off", "work that cannot be read is named, and holds up no other"},
	{"names no damaged work", "work that cannot be read is named, and holds up no other"},
	{"wraps long durations", "the longest durations do not wrap around"},
	{"ends everything a moment late", "a time that has come has ended"},
	{"lets no key pass a transaction", "while a transaction holds one key, others can be claimed and settled"},
	{"rolls back if a sweep deleted the record", "a sweep beside a transaction does not undo it"},
}

// brokenWork are bugs of stores that keep work.
var brokenWork = []struct{ bug, claim string }{
	{"drops the work", "a free key is accepted"},
	{"accepts unknown records", "an acceptance in each state follows the state machine"},
	{"accepts unknown records", "AcceptTx in each state follows the state machine"},
	{"ignores a mismatch of accepted records", "an acceptance with another fingerprint is refused in every state"},
	{"does not recognise its acceptance", "an unacknowledged acceptance recognises itself"},
	{"makes work due at once", "accepted work waits as long as it was asked to, on the store's clock"},
	{"returns queued work as due", "Due leaves work to the caller's own queue"},
	{"keeps queued work from workers", "Due leaves work to the caller's own queue"},
	{"lets workers take delayed work early", "work that is to wait cannot be taken before its time"},
	{"lets workers take delayed work early", "returned work waits for its delay"},
	{"makes work due at once", "returned work waits for its delay"},
	{"claims accepted records", "an accepted key cannot be claimed"},
	{"accepts in two steps", "of many acceptances and claims of one key exactly one comes through"},
	{"forgets accepted records", "accepted work is never forgotten"},
	{"takes records that were not accepted", "a take in each state follows the state machine"},
	{"prolongs the lease for a repeated take", "a repeated take by the owner succeeds"},
	{"gives work to an owner twice", "an owner takes once"},
	{"counts no attempt of a take", "an accepted operation is taken with the next attempt"},
	{"takes in two steps", "of many takes of one operation exactly one is granted"},
	{"loses work when it marks a record unknown", "an expired taken operation becomes unknown, and keeps its work"},
	{"forgets repeatable runs", "a run that may be repeated is due when its lease has run out"},
	{"marks repeatable runs unknown", "an expired run that may be repeated is accepted again, not unknown"},
	{"marks repeatable runs unknown", "an expired run that may be repeated is accepted again in transactions, too"},
	{"returns live runs as due", "a run that may be repeated is left alone while it lives, and when it has ended"},
	{"does not store that a run may be repeated", "notes state that a run may be repeated"},
	{"takes a record that a transaction is settling", "an open transaction of a stopped process cannot commit after its run was taken again"},
	{"returns records that were not accepted", "a return in each state follows the state machine"},
	{"releases work as retryable", "a release of an accepted operation makes it due at once"},
	{"returns without the fence check", "a stale fence can write nothing"},
	{"cancels without the fence check", "a stale fence can write nothing"},
	{"saves without the fence check", "a stale fence can write nothing"},
	{"amends without the fence check", "a stale fence can write nothing"},
	{"relays without the fence check", "relaying in each state compares the fence"},
	{"cancels running operations", "a cancellation in each state follows the state machine"},
	{"keeps cancelled records permanently", "a cancelled operation has an outcome like any other"},
	{"cancels in two steps", "of a cancellation and a take exactly one comes through"},
	{"saves notes of unknown records", "notes are saved in each state that the contract names"},
	{"saves notes of unknown records", "an amended step stays so for the next attempt, and its own run cannot undo it"},
	{"amends notes of running records", "Amend changes the notes of unknown records only"},
	{"amends nothing", "an amended step stays so for the next attempt, and its own run cannot undo it"},
	{"amends nothing", "an unresolved step that did not happen runs again, once"},
	{"saves any version", "notes are only replaced by a greater version"},
	{"compares versions as signed numbers", "notes are only replaced by a greater version"},
	{"drops notes with the run", "notes outlive the run, and end with the outcome"},
	{"cuts work at NUL", "work and notes come back byte for byte"},
	{"cuts work at NUL", "messages come back byte for byte"},
	{"marks unknown on Look", "Look changes nothing"},
	{"reads no cancellation", "Look changes nothing"},
	{"keeps its notes in one place", "records that a store returned are never modified"},
	{"returns the newest first", "the oldest work is due first"},
	{"returns due work of all names", "Due returns work by name"},
	{"returns the oldest of all names first", "names take turns"},
	{"returns all due work at once", "Due returns work in bounded numbers, and all of it in the end"},
	{"returns due work once", "work that was returned and not taken is due again"},
	{"returns notes with due work", "work that was returned and not taken is due again"},
	{"returns due work in two steps", "no two callers get the same work within its time"},
	{"leaves taken work in its queue", "a place in the queue ends with the take"},
	{"sends nothing", "messages are durable with the outcome, and due at once"},
	{"writes messages again", "messages are kept as they were first written"},
	{"forgets records with messages", "nothing with messages is forgotten"},
	{"counts retention from settling", "relayed messages are gone, and the record is kept as long as was asked for from then on"},
	{"returns due work once", "messages that were returned and not sent are due again"},
	{"returns the newest first", "the oldest messages are due first, in bounded numbers"},
	{"returns all due work at once", "the oldest messages are due first, in bounded numbers"},
	{"returns due work in two steps", "no two callers get the same messages within their time"},
	{"sends nothing", "one lost request or reply about messages is not noticed"},
	{"names no damaged work", "messages that cannot be read are named, and hold up no others"},
	{"does not put damaged work off", "messages that cannot be read are named, and hold up no others"},
	{"relays records that have not ended", "relaying in each state compares the fence"},
	{"accepts outside of the transaction", "AcceptTx commits with the caller's rows, or has no effect"},
	{"does not wait for transactions", "AcceptTx waits for a transaction that is accepting the same key"},
	{"does not wait for transactions", "an acceptance or a claim beside AcceptTx does not come through with it"},
	{"saves outside of the transaction", "SaveTx commits with the caller's rows, or has no effect"},
	{"saves without the fence check", "SaveTx compares the fence and the version"},
	{"sends messages before the commit", "messages commit with the outcome, or do not exist"},
	{"does not recognise its owner", "one lost request or reply about work is not noticed"},
	{"returns due work once", "due work comes again after a lost reply"},
	{"drops the work", "without an answer to a take nothing is executed, and the work comes back"},
	{"runs expired claims again", "work with an outcome that could not be written is never executed again"},
	{"sends nothing", "with calls failing at random accepted work is neither lost nor done twice, and its messages come with its outcome"},
	{"drops the work", "random histories of work and messages agree with the model"},
	{"commits in spite of an error", "InTx commits all that was written, or nothing"},
	{"commits in spite of an error", "a stale fence in InTx writes nothing"},
	{"commits in spite of an error", "a worker's rows, outcome and messages are committed together, once"},
	{"commits in spite of an error", "a step's rows and its result are committed together, once"},
	{"wraps long durations", "the longest delays do not wrap around"},
	{"ends everything a moment late", "work is due at the time that was asked for, and not after it"},
	{"takes empty work for none", "empty work is kept like any other"},
	{"takes an empty outbox for none", "an empty outbox is kept like any other"},
	{"forgets a cancellation when it marks a record unknown", "a requested cancellation stays until the outcome, and no longer"},
	{"forgets a cancellation when it is taken", "a requested cancellation stays until the outcome, and no longer"},
	{"keeps a cancellation past the outcome", "a requested cancellation stays until the outcome, and no longer"},
	{"lets no key pass a transaction", "while a transaction has accepted one key, others can be claimed and settled"},
}

func TestBrokenStoresFailTheSuite(t *testing.T) {
	var mu sync.Mutex
	bugs := make(map[string]map[string]*stettest.Recorder)
	broken := slices.Concat(broken, brokenWork)
	for _, b := range broken {
		bugs[b.bug] = nil
	}
	atATime := make(chan struct{}, 16)
	names := slices.Sorted(maps.Keys(bugs))
	race(len(names), func(i int) {
		atATime <- struct{}{}
		defer func() { <-atATime }()
		recs := record(t, names[i])
		mu.Lock()
		defer mu.Unlock()
		bugs[names[i]] = recs
	})
	for _, b := range broken {
		rec := bugs[b.bug][b.claim]
		switch {
		case rec == nil:
			t.Errorf("there is no claim called %q", b.claim)
		case !rec.Failed():
			t.Errorf("a store that %s passes %q", b.bug, b.claim)
		case !strings.Contains(rec.Text(), "why this is required"):
			t.Errorf("a store that %s fails %q without a reason:\n%s", b.bug, b.claim, rec.Text())
		}
	}
	idle := make(map[string]bool) // claims that no bug breaks
	for claim := range bugs[names[0]] {
		idle[claim] = true
	}
	for _, bug := range names {
		failed := failures(bugs[bug])
		t.Logf("a store that %s fails %d claims:\n\t%s", bug, len(failed), strings.Join(failed, "\n\t"))
		for _, claim := range failed {
			delete(idle, claim)
		}
	}
	for claim := range idle {
		t.Errorf("no broken store fails %q: that claim has never failed", claim)
	}
	for name, at := range unreached(t) {
		t.Logf("UNREACHED %s: %s", at, name)
	}
}

// What only a table finds is found because its author thought of it. These are
// found by chance as well.
func TestRandomHistoriesFindBugs(t *testing.T) {
	findByChance(t, "random histories agree with the model",
		"claims without the existence check", "settles without the fence check", "restarts fences after forgetting",
		"ignores a mismatch while running", "expires by the caller's clock", "releases without the fence check",
		"extends without the fence check", "gives lapsed leases up", "grants an owner twice", "runs expired claims again",
		"marks unknown on a mismatch", "refuses a late settle", "accepts a second outcome", "forgets running records", "cuts results at NUL")
}

func TestRandomHistoriesOfWorkFindBugs(t *testing.T) {
	findByChance(t, "random histories of work and messages agree with the model",
		"accepts unknown records", "takes records that were not accepted", "returns without the fence check", "saves any version",
		"amends notes of running records", "saves notes of unknown records", "leaves taken work in its queue", "returns due work once", "writes messages again", "forgets records with messages")
}

func findByChance(t *testing.T, claim string, bugs ...string) {
	t.Helper()
	all := slices.Concat(historyChecks, workHistoryChecks)
	c := all[slices.IndexFunc(all, func(c check) bool { return c.name == claim })]
	for _, bug := range bugs {
		h := smallHarness(bug).Harness
		h.Histories = 1000
		h.fill(t)
		rec := observe(t, c, h)
		if !rec.Failed() || !strings.Contains(rec.Text(), "the history, and what the store answered") {
			t.Errorf("a store that %s passes %d histories, or says nothing:\n%s", bug, h.Histories, rec.Text())
		}
		t.Logf("a store that %s:\n%s", bug, rec.Text())
	}
}

// record tries every claim of the suite on a store with the bug, side by side.
func record(t *testing.T, bug string) map[string]*stettest.Recorder {
	probe := smallHarness(bug)
	var all []check
	for _, c := range append(checks(probe.Harness, probe.New(t)), txChecks(probe, probe.New(t))...) {
		all = append(all, check{c.name, c.why, nil})
	}
	recs := make([]*stettest.Recorder, len(all))
	race(len(all), func(i int) {
		h := smallHarness(bug) // with a clock of its own
		h.Histories = 20       // TestRandomHistoriesFindBugs tries more
		h.fill(t)
		c := append(checks(probe.Harness, probe.New(t)), txChecks(h, probe.New(t))...)[i]
		recs[i] = observe(t, c, h.Harness)
	})
	byName := make(map[string]*stettest.Recorder)
	for i, c := range all {
		byName[c.name] = recs[i]
	}
	return byName
}

func failures(all map[string]*stettest.Recorder) (names []string) {
	for name, rec := range all {
		if rec.Failed() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// observe tries a claim and returns how that went.
func observe(t *testing.T, c check, h Harness) *stettest.Recorder {
	t.Helper()
	return stettest.Record(t, noteFailure, func(t testing.TB) { c.do(t, h) })
}
