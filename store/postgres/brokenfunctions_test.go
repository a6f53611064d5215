package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stet-go/stet/internal/test/rig"
)

// defect is a mistake in one of the functions, and a claim of the suite that it breaks.
type defect struct {
	Bug      string
	Claim    string      // of TestFunctionsKeepTheContract, or of TestMessagesOfSQL: "messages/…"; or the name of a test
	Function string      // without stet_; "": Changes are statements
	Changes  [][2]string // each text is in the function once, and is replaced
	URL      string      // of the database in which it is tried
}

// defects are what may go wrong in the functions.
var defects = []defect{
	{Bug: "begin runs running records", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"ELSIF r.state <> 4 AND NOT r.void THEN", "ELSIF r.state NOT IN (1, 4) THEN"}, {"(t.state = 4 OR", "(t.state IN (1, 4) OR"}}},
	{Bug: "begin runs records with expired leases", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"ELSIF r.state <> 4 AND NOT r.void THEN", "ELSIF r.state <> 4 AND coalesce(r.lease_until > moment, true) THEN"}, {"(t.state = 4 OR", "(t.state IN (1, 4) OR"}}},
	{Bug: "begin runs unknown records", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"ELSIF r.state <> 4 AND NOT r.void THEN", "ELSIF r.state NOT IN (4, 5) THEN"}, {"(t.state = 4 OR", "(t.state IN (4, 5) OR"}}},
	{Bug: "begin runs failed records", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"ELSIF r.state <> 4 AND NOT r.void THEN", "ELSIF r.state NOT IN (3, 4) THEN"}, {"(t.state = 4 OR", "(t.state IN (3, 4) OR"}}},
	{Bug: "begin does not run released records", Claim: "transactions/an error or a panic rolls everything back", Function: "begin_raw",
		Changes: [][2]string{{"ELSIF r.state <> 4 AND NOT r.void THEN", "ELSE"}}},
	{Bug: "begin runs expired records, also those of leases", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"AND t.outside = t.owner, false) AS void", ", false) AS void"}, {"AND t.run_due IS NULL AND t.outside = t.owner)", "AND t.run_due IS NULL)"}}},
	{Bug: "begin does not run expired records that were settled outside", Claim: "transactions/a transaction runs after an expired run that was settled outside", Function: "begin_raw",
		Changes: [][2]string{{"r.state <> 4 AND NOT r.void THEN", "r.state <> 4 THEN"}}},
	{Bug: "begin sees no mismatch", Claim: "transactions/another fingerprint is refused without calling the function", Function: "begin_raw",
		Changes: [][2]string{{"IF r.fingerprint <> fingerprint THEN", "IF false THEN"}}},
	{Bug: "begin replays expired results", Claim: "transactions/retention and forgetting are those of a settle", Function: "begin_raw",
		Changes: [][2]string{{"r.gone OR r.expires_at <= moment", "r.gone"}}},
	{Bug: "begin forgets with the result", Claim: "transactions/retention and forgetting are those of a settle", Function: "begin_raw",
		Changes: [][2]string{{"OR r.forget_at > moment)", "OR r.expires_at > moment)"}, {"(t.state = 4 OR t.forget_at <= moment\n", "(t.state = 4 OR t.expires_at <= moment\n"}}},
	{Bug: "begin never forgets", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"FOUND AND (r.forget_at IS NULL OR r.forget_at > moment)", "FOUND"}}},
	{Bug: "begin loses the body", Claim: "transactions/the business rows and the record are committed together", Function: "begin_raw",
		Changes: [][2]string{{"body := coalesce(r.body, ''::bytea)", "body := ''"}}},
	{Bug: "begin keeps the fence", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"fence = nextval(", "fence = t.fence + 0 * nextval("}}},
	{Bug: "begin keeps the owner", Claim: "transactions/the function is called only where the state machine has an arrow", Function: "begin_raw",
		Changes: [][2]string{{"owner = owner,", "owner = t.owner,"}}},
	{Bug: "IDs have no scope", Claim: "transactions/the business rows and the record are committed together", Function: "id",
		Changes: [][2]string{{"convert_to(namespace, 'UTF8'), convert_to(scope, 'UTF8'), convert_to(key, 'UTF8')", "convert_to(namespace, 'UTF8'), convert_to(key, 'UTF8')"}}},
	{Bug: "settle compares no fence", Claim: "transactions/SettleTx compares the fence", Function: "settle_raw",
		Changes: [][2]string{{"AND r.owner = owner AND r.fence = fence AND", "AND"}}},
	{Bug: "settle compares the owner alone", Claim: "store/a stale fence can write nothing", Function: "settle_raw",
		Changes: [][2]string{{"AND r.fence = fence AND", "AND"}}},
	{Bug: "settle takes a second outcome", Claim: "store/a settle that is repeated succeeds, with another outcome it is refused", Function: "settle_raw",
		Changes: [][2]string{{"AND r.state IN (1, 5)", ""}}},
	{Bug: "settle refuses unknown records", Claim: "store/a settle in each state follows the state machine", Function: "settle_raw",
		Changes: [][2]string{{"AND r.state IN (1, 5)", "AND r.state = 1"}}},
	{Bug: "a refused settle is a success", Claim: "transactions/SettleTx compares the fence", Function: "fenced",
		Changes: [][2]string{{"BEGIN", "BEGIN RETURN;"}}},
	{Bug: "settle loses the body", Claim: "transactions/every outcome comes back byte for byte", Function: "settle_raw",
		Changes: [][2]string{{"body = body", "body = NULL"}}},
	{Bug: "settle cuts the body", Claim: "transactions/every outcome comes back byte for byte", Function: "settle_raw",
		Changes: [][2]string{{"body = body", "body = substr(body, 1, 1000)"}}},
	{Bug: "settle makes a failure a success", Claim: "transactions/every outcome comes back byte for byte", Function: "settle_raw",
		Changes: [][2]string{{"CASE WHEN failed THEN 3 ELSE 2 END", "2"}}},
	{Bug: "settle stores results that must be discarded", Claim: "transactions/every outcome comes back byte for byte", Function: "settle_raw",
		Changes: [][2]string{{"gone = gone", "gone = false"}}},
	{Bug: "settle keeps the result as long as the tombstone", Claim: "store/an outcome is kept as long as it was asked for", Function: "settle_raw",
		Changes: [][2]string{{"moment END + kept,\n", "moment END + make_interval(secs => tombstone),\n"}}},
	{Bug: "release compares no fence", Claim: "store/a stale fence can write nothing", Function: "release",
		Changes: [][2]string{{"AND r.owner = c.owner AND r.fence = c.fence AND", "AND"}}},
	{Bug: "release settles", Claim: "store/a release in each state follows the state machine", Function: "release",
		Changes: [][2]string{{"CASE WHEN r.work IS NULL THEN 4 ELSE 6 END", "2"}}},
	{Bug: "release takes an outcome back", Claim: "store/of a settle and a release under one fence exactly one comes through", Function: "release",
		Changes: [][2]string{{"AND r.state IN (1, 5)", "AND r.state IN (1, 2, 5)"}}},
	{Bug: "released records are never forgotten", Claim: "store/a released record is forgotten after its result's retention", Function: "release",
		Changes: [][2]string{{"forget_at = CASE WHEN r.work IS NULL THEN until END", "forget_at = NULL"}}},
	{Bug: "emit refuses no stale claim", Claim: "messages/of a stale claim are refused", Function: "emit",
		Changes: [][2]string{{"AND r.state IN (1, 5)", "AND r.state IN (1, 2, 4, 5)"}}},
	{Bug: "emit compares no fence", Claim: "messages/of a stale claim are refused", Function: "emit",
		Changes: [][2]string{{"AND r.owner = c.owner AND r.fence = c.fence AND", "AND"}}},
	{Bug: "emit counts messages of others", Claim: "messages/are of their operation alone", Function: "settle",
		Changes: [][2]string{{"m WHERE m.owner = c.owner RETURNING", "m RETURNING"}}},
	{Bug: "each message has one ID", Claim: "messages/are those of Go", Function: "emit",
		Changes: [][2]string{{"|| int8send(octet_length(nth)::bigint) || nth)", ")"}}},
	{Bug: "messages lose their order", Claim: "messages/are those of Go", Function: "settle",
		Changes: [][2]string{{"ORDER BY t.n)", "ORDER BY -t.n)"}}},
	{Bug: "messages lose their key", Claim: "messages/are those of Go", Function: "emit",
		Changes: [][2]string{{"'Key', coalesce(key, '')", "'Key', ''"}}},
	{Bug: "messages are not bounded", Claim: "messages/are bounded as in Go", Function: "emit",
		Changes: [][2]string{{"total + bytes > 1048576", "false"}}},
	{Bug: "messages are not counted", Claim: "messages/are bounded as in Go", Function: "emit",
		Changes: [][2]string{{"count >= 1000 OR", ""}}},
	{Bug: "messages are never due", Claim: "messages/are those of Go", Function: "settle",
		Changes: [][2]string{{"relay_due = clock_timestamp()", "relay_due = NULL"}}},
	{Bug: "messages are forgotten with their record", Claim: "messages/keep their record until they have left, and its tombstone from then on", Function: "settle",
		Changes: [][2]string{{"forget_at = NULL, due_at", "due_at"}}},
	{Bug: "messages shorten the tombstone", Claim: "messages/keep their record until they have left, and its tombstone from then on", Function: "settle",
		Changes: [][2]string{{"(forget * 1000000000)::numeric(30)::text", "0::text"}}},
	{Bug: "an unsettled operation commits, and its messages are lost", Claim: "messages/without an outcome keep a transaction from being committed", Function: "unsent",
		Changes: [][2]string{{"IF EXISTS", "IF false AND EXISTS"}}},
	{Bug: "a release keeps messages", Claim: "messages/go with their transaction and their claim", Function: "release",
		Changes: [][2]string{{"WHERE m.owner = c.owner;", "WHERE false;"}}},
	{Bug: "the sweep removes tombstones", Claim: "store/a sweep does due work only", Function: "sweep",
		Changes: [][2]string{{"due.state <> 1 AND due.forgotten RETURNING", "due.state <> 1 RETURNING"}, {"AND NOT due.forgotten RETURNING", "AND false RETURNING"}}},
	{Bug: "a transaction commits without an outcome", Claim: "TestTransactionThatForgetsToSettleCommitsNothing",
		Changes: [][2]string{{"ALTER TABLE stet.records DROP CONSTRAINT stet_unsettled"}}},
	{Bug: "the guard can be switched off", Claim: "TestServiceCannotCommitWithoutAnOutcome",
		Changes: [][2]string{{"ALTER TABLE stet.records_empty DROP CONSTRAINT records_empty_check"}}},
	{Bug: "begin does not try the lock of the key", Claim: "TestRequestForSomethingElseMakesNoMismatch", Function: "begin_raw",
		Changes: [][2]string{{"IF pg_try_advisory_xact_lock(run_lock) THEN", "IF true THEN"}}},
	{Bug: "begin leaves the scope of a forgotten record", Claim: "TestBeginReplacesTheScopeOfAForgottenRecord", Function: "begin_raw",
		Changes: [][2]string{{"SET scope = scope, ", "SET "}}},
	{Bug: "begin waits for a locked record", Claim: "TestBeginDoesNotWaitForALockedRecord", Function: "begin_raw",
		Changes: [][2]string{{"FOR UPDATE SKIP LOCKED", ""}}},
	{Bug: "begin takes an ID of another scope", Claim: "TestRawFunctionsRefuseWrongArguments", Function: "begin_raw",
		Changes: [][2]string{{" AND substr(id, 1, 8) = substr(scope, 1, 8)", ""}}},
	{Bug: "sweeps stop at rows that they cannot change", Claim: "TestSweepsSkipRowsThatTheyCannotChange", Function: "sweep",
		Changes: [][2]string{{"AND (r.state IN (2, 3) OR r.state = 1 AND r.lease_until <= moment OR r.state <> 1 AND r.forget_at <= moment)", ""}}},
	{Bug: "header fields that cannot be read are another error", Claim: "TestUnreadableHeaderFieldsAreST005", Function: "head",
		Changes: [][2]string{{"WHEN data_exception OR statement_too_complex", "WHEN division_by_zero"}}},
	{Bug: "begin publishes no fingerprint", Claim: "TestEachStateIsReturned", Function: "begin_raw",
		Changes: [][2]string{{"pg_try_advisory_xact_lock(print_lock, print)", "true"}}},
	{Bug: "begin publishes another fingerprint than Go", Claim: "TestPreparedTransactionHoldsItsKey", Function: "begin",
		Changes: [][2]string{{"('finger'::text", "('print'::text"}}},
	{Bug: "begin resolves names in the caller's schemas", Claim: "TestFunctionsDoNotDependOnTheSession", Function: "begin_raw",
		Changes: [][2]string{{"SET search_path TO 'pg_catalog', 'pg_temp'", ""}}},
	{Bug: "settle resolves names in the caller's schemas", Claim: "TestFunctionsDoNotDependOnTheSession", Function: "settle_raw",
		Changes: [][2]string{{"SET search_path TO 'pg_catalog', 'pg_temp'", ""}}},
	{Bug: "settle leaves the reference", Claim: "TestEachStateIsReturned", Function: "settle_raw",
		Changes: [][2]string{{"unsettled = NULL, ", ""}}},
	{Bug: "release leaves the reference", Claim: "TestEachStateIsReturned", Function: "release",
		Changes: [][2]string{{", unsettled = NULL", ""}}},
	{Bug: "settle compares no owner", Claim: "TestRawFunctionsRefuseWrongArguments", Function: "settle_raw",
		Changes: [][2]string{{"AND r.owner = owner AND", "AND"}}},
	{Bug: "begin takes the fingerprint of a lock for that of the record", Claim: "TestRequestForSomethingElseMakesNoMismatch", Function: "begin_raw",
		Changes: [][2]string{{"concurrent AND NOT there", "concurrent"}}},
	{Bug: "begin locks the row of a late settle", Claim: "TestBeginDoesNotWaitForALateSettle", Function: "begin_raw",
		Changes: [][2]string{{"FOR UPDATE SKIP LOCKED", ""}}},
	{Bug: "settle stores any head", Claim: "TestRawFunctionsRefuseWrongArguments", Function: "settle_raw",
		Changes: [][2]string{{"AND (head IS NULL OR substr(head, 1, 1) = decode('03', 'hex'))", ""}}},
	{Bug: "begin stores digests of any length", Claim: "TestRawFunctionsRefuseWrongArguments", Function: "begin_raw",
		Changes: [][2]string{{"octet_length(id) = 32 AND octet_length(scope) = 32 AND", ""}}},
	{Bug: "settle changes an index", Claim: "TestSettleChangesNoIndex", Function: "settle_raw",
		Changes: [][2]string{{"due_at = CASE WHEN gone", "due_at = interval '1 us' + CASE WHEN gone"}}},
	{Bug: "begin counts as unsettled", Claim: "TestSettleChangesNoIndex", Function: "begin_raw",
		Changes: [][2]string{{"class, name, ref, due, due, true)", "class, name, ref, NULL, due, true)"}}},
	{Bug: "begin runs when another has the row", Claim: "TestWrongLocksCannotRunAnOperationTwice", Function: "begin_raw",
		Changes: [][2]string{{"ON CONFLICT ON CONSTRAINT \"records_pkey\" DO NOTHING", "ON CONFLICT ON CONSTRAINT \"records_pkey\" DO UPDATE SET owner = excluded.owner, fence = excluded.fence, state = 1, unsettled = true"}}},
}

// defectEnv has the defect that TestFunctionsKeepTheContract plants, as JSON.
const defectEnv = "STET_TEST_BROKEN_FUNCTION"

// theDefect is the one of this process; nil as a rule.
func theDefect(t testing.TB) (d *defect) {
	t.Helper()
	if text := os.Getenv(defectEnv); text != "" {
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// own is whether the defect is noticed by a test of its own. It is planted in each store that
// the test opens.
func (d *defect) own() bool { return d != nil && strings.HasPrefix(d.Claim, "Test") }

// database is that of the process which looks at the outcome, or else a fresh one.
func (d *defect) database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	if d == nil {
		return database(t)
	}
	return connect(t, d.URL)
}

// notPlanted is said where the defect could not be made: its failure says nothing.
const notPlanted = "THE DEFECT WAS NOT PLANTED"

// plant replaces the function, in the schema of s, by a broken one.
func (d *defect) plant(t testing.TB, s *Store) {
	t.Helper()
	if d == nil {
		return
	}
	if d.Function == "" {
		for _, c := range d.Changes {
			execSQL(t, s.Pool(), c[0])
		}
		return
	}
	var text string
	err := s.Pool().QueryRow(t.Context(), `SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace AND p.proname = 'stet_' || $2`,
		pgx.Identifier{s.n.schema}.Sanitize(), d.Function).Scan(&text)
	if err != nil {
		t.Fatalf("%s: there is no function stet_%s: %v", notPlanted, d.Function, err)
	}
	for _, c := range d.Changes {
		if n := strings.Count(text, c[0]); n != 1 {
			t.Fatalf("%s: stet_%s has %q %d times; want once", notPlanted, d.Function, c[0], n)
		}
		text = strings.Replace(text, c[0], c[1], 1)
	}
	if _, err := s.Pool().Exec(t.Context(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", notPlanted, err)
	}
}

// noticed tests the broken function in another process, and returns an error
// if the suite does not notice it.
func (d *defect) noticed(ctx context.Context, self string) string {
	order, err := json.Marshal(d)
	if err != nil {
		return err.Error()
	}
	run, claim, why := "^TestFunctionsKeepTheContract$", d.Claim, "why this is required"
	if own, ok := strings.CutPrefix(claim, "messages/"); ok {
		run, claim, why = "^TestMessagesOfSQL$", own, "--- FAIL: TestMessagesOfSQL/"
	}
	if d.own() {
		run, claim, why = "^"+claim+"$", "", "--- FAIL: "+claim
	}
	for part := range strings.FieldsFuncSeq(claim, func(r rune) bool { return r == '/' }) {
		run += "/^" + regexp.QuoteMeta(strings.ReplaceAll(part, " ", "_")) + "$"
	}
	cmd := exec.CommandContext(ctx, self, "-test.run", run, "-test.timeout", "90s", "-test.count", "1")
	cmd.Env = append(slices.Clone(os.Environ()), defectEnv+"="+string(order))
	out, err := cmd.CombinedOutput()
	said := string(out)
	_, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case err != nil && !failed:
		return err.Error()
	case strings.Contains(said, notPlanted), strings.Contains(said, "(SQLSTATE 42"): // the function is no function any more
		return "it cannot be planted any more:\n" + said
	case !failed:
		return "the suite passes:\n" + said
	case !strings.Contains(said, why):
		return "no claim of the suite has failed:\n" + said
	}
	return ""
}

// The suite that the functions pass notices each defect in a function. It would also
// notice a changed function.
func TestSuiteNoticesBrokenFunctions(t *testing.T) {
	t.Parallel() // it mostly waits
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := rig.Postgres(t)
	atATime := make(chan struct{}, 4)
	for _, d := range defects {
		t.Run(d.Bug, func(t *testing.T) {
			t.Parallel()
			atATime <- struct{}{}
			defer func() { <-atATime }()
			d.URL = server.Database(t)
			if wrong := d.noticed(t.Context(), self); wrong != "" {
				t.Errorf("%s: %s", d.Claim, wrong)
			}
		})
	}
}
