package main

// defect is one way to break the product: a piece of text that is in a file
// once, what takes its place, and the tests that must notice.
type defect struct {
	name     string
	file     string
	old, new string
	tests    []string // arguments of go test
}

var (
	engineTests   = []string{"."}
	memoryTests   = []string{"./store/memory"}
	sqliteTests   = []string{"./store/sqlite"}
	postgresTests = []string{"./store/postgres"}
	httpTests     = []string{"./stethttp"}
	simulateTests = []string{"./internal/simulate"}
)

// some are those of the tests whose names match.
func some(names string, tests []string) []string { return append([]string{"-run", names}, tests...) }

var defects = []defect{
	// Stores.
	{"memory: a claim without the existence check", "store/memory/memory.go",
		"case e == nil:\n\t\tif s.n", "case e == nil || e.state == stet.Running:\n\t\tif s.n", memoryTests},
	{"memory: settling without the fence check", "store/memory/memory.go",
		"if e == nil || e.fence != c.Fence {\n\t\treturn stet.ErrFenced\n\t}\n\tif e.state == out.State",
		"if e == nil {\n\t\treturn stet.ErrFenced\n\t}\n\tif e.state == out.State", memoryTests},
	{"memory: extending without the fence check", "store/memory/memory.go",
		"if e == nil || e.fence != c.Fence || e.state != stet.Running {\n\t\t\tlost", "if e == nil || e.state != stet.Running {\n\t\t\tlost", memoryTests},
	{"memory: releasing without the fence check", "store/memory/memory.go",
		"if e == nil || e.fence != c.Fence {\n\t\treturn stet.ErrFenced\n\t}\n\tif e.state == stet.Retryable",
		"if e == nil {\n\t\treturn stet.ErrFenced\n\t}\n\tif e.state == stet.Retryable", memoryTests},
	{"memory: a mismatch is not checked while running", "store/memory/memory.go",
		"case e.fingerprint != req.Fingerprint:", "case e.fingerprint != req.Fingerprint && e.state != stet.Running:", memoryTests},
	{"memory: a lapsed claim is run again instead of parked", "store/memory/memory.go",
		"now >= e.leaseEnd:\n\t\ts.park(e, now)\n\tcase", "now >= e.leaseEnd:\n\t\te.state = stet.Retryable\n\t\ts.grant(e, req, now)\n\tcase", memoryTests},
	{"memory: fences start again after forgetting", "store/memory/memory.go",
		"s.fence++\n\te.fence = s.fence", "s.fence++\n\te.fence++", memoryTests},
	{"memory: the result outlives its expiry", "store/memory/memory.go",
		"if now >= e.expires {\n\t\te.result, e.gone = nil, true\n\t}", "", memoryTests},
	{"sqlite: settling without the fence check", "store/sqlite/link.go",
		"\t\tWHERE fence = ? AND id = ? AND state IN (1, 5)`,\n\tqRelease", "\t\tWHERE ? > 0 AND id = ? AND state IN (1, 5)`,\n\tqRelease", sqliteTests},
	{"sqlite: a sweep that takes results before their time", "store/sqlite/link.go",
		"WHERE due <= ? ORDER BY due", "WHERE due <= ? + 1000000000000 ORDER BY due", sqliteTests},
	{"memory: a sweep that parks live claims", "store/memory/memory.go",
		"if e.state == stet.Running && now >= e.leaseEnd {\n\t\t\ts.park", "if e.state == stet.Running {\n\t\t\ts.park", memoryTests},
	{"sqlite: the lease is judged by the process's clock", "store/sqlite/record.go",
		"return r.State == stet.Running && now >= r.lease", "return r.State == stet.Running && time.Now().UnixMicro() >= r.lease", sqliteTests},
	{"sqlite: purging forgets the fence", "store/sqlite/schema.go",
		"UPDATE stet_meta SET fence = old.fence WHERE one = 1;", "UPDATE stet_meta SET fence = fence WHERE one = 1;", sqliteTests},
	{"postgres: settling without the fence check", "store/postgres/txsql.go",
		"AND r.fence = $2::bigint AND r.state IN (1, 5)", "AND $2::bigint > 0 AND r.state IN (1, 5)", postgresTests},
	{"postgres: a lost COMMIT is taken for a rollback", "store/postgres/commit.go",
		"r != nil && r.Owner == rec.Owner && r.Fence == rec.Fence", "r != nil && r.Fence < 0 && r.Owner == rec.Owner && r.Fence == rec.Fence", append([]string{"-run", "Commit"}, postgresTests...)},

	// The engine.
	{"the scope is dropped from the key", "key.go",
		`sum := digest("stet id 2", namespace, scope, key)`, `sum := digest("stet id 2", namespace, key)`, engineTests},
	{"the scope is joined to the key without its length", "key.go",
		"\t\tb = binary.BigEndian.AppendUint32(b, uint32(len(p)))\n", "", engineTests},
	{"a flight is shared by all scopes", "engine.go",
		"func (e *Engine) ID(scope, key string) ID { return Digest(e.o.Namespace, scope, key) }",
		`func (e *Engine) ID(scope, key string) ID { return Digest(e.o.Namespace, "", key) }`, engineTests},
	{"a mismatch is not checked where a flight is followed", "enter.go",
		"return entry{rec: Record{ID: f.id, State: Running, Fingerprint: fp}}, nil",
		"_ = fp\n\t\t\treturn entry{rec: Record{ID: f.id, State: Running, Fingerprint: t.req.Fingerprint}}, nil", engineTests},
	{"a mismatch is not checked where an outcome is shared", "enter.go",
		"if en.rec.Fingerprint != t.req.Fingerprint {\n\t\t\te.observe", "if en.rec.State == Running && en.rec.Fingerprint != t.req.Fingerprint {\n\t\t\te.observe", engineTests},
	{"an owner claims twice", "enter.go", "t.req.Owner = NewOwner() // an owner claims once", "", engineTests},
	{"a dead run is run again where the policy says park", "enter.go",
		"case t.p.Stale == StaleTakeOver:", "case t.p.Stale != StaleFail:", engineTests},
	{"a verifier that failed counts as not executed", "enter.go",
		"return CannotKnow(), false\n", "return ItDidNotHappen(), true\n", engineTests},
	{"store calls end with the caller's request", "enter.go", "\tctx = e.stepContext(ctx)\n", "", append([]string{"./stethttp"}, engineTests...)},
	{"a settle is given up at the first failure", "enter.go",
		"return e.step(ctx, 0, func(ctx context.Context) error { return e.store.Settle(", "return e.step(ctx, 1, func(ctx context.Context) error { return e.store.Settle(", engineTests},
	{"an outcome that was not stored is reported as stored", "run.go",
		"wrapped = &Error{Kind: ErrUnknown, Execution: MayHaveExecuted, Cause: errors.Join(ErrStore, err)}", "wrapped = nil", engineTests},
	{"a lost lease does not end the run", "keeper.go", "\tr.cancel(cause)\n\tk.e.flights.end", "\tk.e.flights.end", engineTests},
	{"a heartbeat that fails counts as sent", "keeper.go",
		"\t\treturn // tried again; see due for when it is too late\n", "", engineTests},
	{"a run outlives its lease when the store hangs", "keeper.go",
		"case unrenewed >= r.p.Lease && !r.settling():", "case unrenewed >= 1000*r.p.Lease && !r.settling():", engineTests},
	{"a transaction whose function failed is not rolled back", "tx.go",
		"case err != nil:\n\t\treturn Outcome{}, errRolledBack{err}\n\tcase run.SaysNothingHappened", "case err != nil && out.State == None:\n\t\treturn Outcome{State: Completed}, nil\n\tcase run.SaysNothingHappened", engineTests},
	{"a commit whose fate is unknown is called not executed", "tx.go",
		"return rec, &Error{Kind: ErrUnknown, Execution: MayHaveExecuted, RetryAfter: retryAfter, Cause: err}",
		"return rec, &Error{Kind: ErrStore, Execution: NotExecuted, RetryAfter: retryAfter, Cause: err}", engineTests},
	{"another's outcome is taken for the transaction's own", "tx.go",
		"en.granted = err == nil && en.rec.Owner == t.req.Owner", "en.granted = err == nil", simulateTests},
	{"a transaction that has committed stays in flight", "tx.go",
		"\t\t\tif en.granted {\n\t\t\t\te.flights.end(f, en)\n\t\t\t}\n", "", simulateTests},
	{"a mismatch is not checked where a transaction is followed", "enter.go",
		"return entry{rec: Record{ID: f.id, State: Running, Fingerprint: fp}}, nil",
		"_ = fp\n\t\t\treturn entry{rec: Record{ID: f.id, State: Running, Fingerprint: t.req.Fingerprint}}, nil", simulateTests},
	{"a transaction that runs in vain refuses who asks for what stands", "enter.go",
		"if now.State.Settled() {\n\t\treturn now, nil", "if now.State.Settled() && rec.State != Running {\n\t\treturn now, nil", engineTests},
	{"an operator's verdict is taken for a later run", "operate.go",
		"case rec.State == None || rec.Fence != shown.Fence:", "case rec.State == None:", engineTests},
	{"damage of a stored result is not noticed", "internal/seal/seal.go",
		"got != want {", "got != want && len(content) == 0 {", []string{"./internal/seal", "."}},
	{"an encrypted result opens for another record", "sealing.go",
		"return append(id[:len(id):len(id)], byte(state))", "return []byte{byte(state)}", engineTests},

	// HTTP.
	{"a 401 is stored", "stethttp/options.go", "case http.StatusUnauthorized, http.StatusForbidden,", "case http.StatusForbidden,", httpTests},
	{"the response leaves before its outcome is durable", "stethttp/serve.go",
		"\tif err := run.Settle(ctx, out); err != nil {\n\t\tc.failed", "\trw.send()\n\tif err := run.Settle(ctx, out); err != nil {\n\t\tc.failed", httpTests},
	{"a panic gives the claim back", "stethttp/serve.go",
		"if err := run.Settle(c.r.Context(), c.m.panicked); err != nil {", "if err := run.Release(c.r.Context()); err != nil {", httpTests},
	{"a client that leaves ends the run", "run.go",
		"r.setContext(ctx, context.Background())", "r.setContext(ctx, ctx)", append([]string{"./stethttp"}, engineTests...)},
	{"only the first of two keys is looked at", "stethttp/serve.go", "\tdefault:\n\t\treturn &keyRepeated, \"\"\n", "", httpTests},
	{"a cookie is replayed", "stethttp/headers.go", "if !o.StoreSetCookie {", "if o.StoreSetCookie {", httpTests},
	{"the body is not part of the fingerprint", "stethttp/fingerprint.go",
		"b[ends[2]:ends[3]], body)", "b[ends[2]:ends[3]], nil)", httpTests},
	{"an unprotected run where the store fails, unasked for", "stethttp/serve.go",
		"if c.m.o.FailOpen && errors.Is(err, stet.ErrStore)", "if errors.Is(err, stet.ErrStore)", httpTests},
	{"a 5xx in a transaction is committed", "stethttp/serve.go",
		"if rw.status >= http.StatusInternalServerError || c.m.o.NotExecuted", "if c.m.o.NotExecuted", httpTests},

	// Accepted operations.
	{"memory: returning without the fence check", "store/memory/work.go",
		"if e == nil || e.fence != c.Fence || !e.accepted() {", "if e == nil || !e.accepted() {", memoryTests},
	{"memory: notes are saved without the fence check", "store/memory/work.go",
		"if e == nil || e.fence != c.Fence || e.state != in {", "if e == nil || e.state != in {", memoryTests},
	{"memory: older notes replace newer ones", "store/memory/work.go", "\tcase -1:\n\t\treturn stet.ErrFenced\n", "", memoryTests},
	{"memory: what was handed out is not handed out again", "store/memory/work.go", "\t\ts.wait(e, what, after(now, again))\n", "", memoryTests},
	{"sqlite: older notes replace newer ones", "store/sqlite/link.go", "AND coalesce(substr(notes, 1, 8), x'') < ?", "AND x'' < ?", some("StoreKeepsTheContract/notes_are", sqliteTests)},
	{"postgres: returning without the fence check", "store/postgres/workstatements.go",
		"sqlReturnable = `r.id = $1::bytea AND r.fence = $2::bigint AND", "sqlReturnable = `r.id = $1::bytea AND $2::bigint > 0 AND", some("StoreKeepsTheContract/a_stale_fence", postgresTests)},
	{"an operation is shown to another scope", "accept.go",
		"if st.Record.Scope != DigestScope(e.o.Namespace, scope) {", "if st.Record.Scope == DigestScope(e.o.Namespace, scope+scope) {", some("Scope|Cancel", engineTests)},
	{"a cancellation of what waits is not carried out", "accept.go",
		"_, err = ws.Cancel(ctx, st.Record.Claim(), out, p.Retention)", "_, _ = ws, out", some("Cancel", engineTests)},
	{"a once-only step is begun without noting it down", "step.go",
		"return false, r.note(ctx, ws, name, &step{})", "return false, nil", some("Step", engineTests)},
	{"a once-only step that failed leaves no doubt", "step.go",
		"\tcase err != nil && kind == StepOnce:\n\t\tr.OutcomeUnknown(0)\n", "\tcase err != nil && kind == StepOnce:\n\t\terr = errors.Join(err, r.note(ctx, ws, name, nil))\n", some("Step", engineTests)},
	{"a step that was done is run again", "step.go", "case s != nil && s.Done:", "case s != nil && s.Done && kind == StepOnce:", some("BreakNoPromise", []string{"./internal/simulate"})},
	{"notes are written over what a lost COMMIT may have written", "step.go", "\t\t\tb.torn = err\n", "", some("Step", engineTests)},
	{"two messages of a run have one ID", "emit.go", "strconv.Itoa(len(r.outbox)))", "strconv.Itoa(0))", some("Message|Emit", engineTests)},
	{"messages of a transaction that failed leave with the next", "take.go", "\t\t\tr.takeBack(before)\n", "\t\t\t_ = before\n", some("Commit|Emit|Message", engineTests)},
	{"messages are called sent though the broker refused them", "stetmsg/relay.go",
		"if err = r.publish(send, together); err == nil {", "if err = r.publish(send, together); err == nil || len(parcels) == 1 {", some("Message|Relay", []string{"./stetmsg"})},
	{"postgres: a group commits a run and not its messages", "store/postgres/group.go", "case out.Outbox != nil:", "case out.Outbox != nil && s == nil:", some("GroupThatEmits", postgresTests)},
	{"a step in doubt is taken over", "operate.go", "\tcase step != \"\":\n", "\tcase step == \"stet\":\n", some("Doubt", engineTests)},
	{"what a verdict rules out stays in doubt", "operate.go", "\t\terr = e.strike(ctx, now, n)\n", "", some("Doubt", engineTests)},
	{"an operation in doubt is called failed", "stetwork/attempt.go", "\tif a.doubtful(ctx) {\n\t\ta.park(ctx, err)", "\tif a.run == nil {\n\t\ta.park(ctx, err)", some("Doubt", []string{"./stetwork"})},
	{"a reconciler's verdict is carried out on whatever stands now", "reconcile/one.go",
		"err == nil && (now.Fence != st.Record.Fence || !dead(now) && now.State != st.Record.State) {", "err == nil && now.State != stet.Unknown {\n\t\tp.add(func(*Report) {})\n\t} else if st.Record = now; err != nil {", some("Changed|Verdict", []string{"./reconcile"})},
	{"a remote worker that has gone quiet counts as not executed", "stetwork/remote/session.go",
		"\t\t\t\trun.OutcomeUnknown(0)\n\t\t\t\treturn nil, errGone", "\t\t\t\treturn nil, errNobody", some("Silent", []string{"./stetwork/remote"})},
	{"any token lets in", "internal/desk/bearer.go", "subtle.ConstantTimeCompare(got[:], want[:]) == 1", "subtle.ConstantTimeCompare(got[:], want[:]) >= 0", some("Token|Stranger", []string{"./dashboard", "./stetwork/remote"})},
	{"the dashboard answers under any name", "dashboard/guard.go", "if !desk.LoopbackName(host) || ", "if ", some("Host", []string{"./dashboard"})},
	{"the dashboard answers any other host", "dashboard/guard.go", "!loopback(r.RemoteAddr) {", "r.RemoteAddr == \"\" {", some("Host", []string{"./dashboard"})},
}
