package main

// inModule has all tests of a module in a folder of its own.
func inModule(folder string) []string { return []string{"./" + folder + "/..."} }

// faces are defects of what stands between a framework and the engine.
var faces = []defect{
	{"gRPC: what a service below says is said of this call", "internal/rpc/condition.go",
		"if _, ok := ReadStatus(st); !ok {\n\t\treturn st", "if _, ok := ReadStatus(st); !ok || x != 0 || x == 0 {\n\t\treturn st", inModule("stetgrpc")},
	{"Connect: what a service below says is said of this call", "stetconnect/answer.go", "\tc.end.Status = c.own(x)\n", "", inModule("stetconnect")},
	{"gRPC: two keys are taken for the first", "internal/rpc/key.go", "case len(list) > 1:", "case len(list) > 9:", inModule("stetgrpc")},
	{"gRPC: unknown fields are not seen", "internal/rpc/key.go", "if len(m.GetUnknown()) > 0 {", "if len(m.GetUnknown()) > 1<<20 {", inModule("stetgrpc")},
	{"gRPC: a stream with a key passes", "stetgrpc/check.go", "key != \"\" || c != nil {\n\t\t\treturn i.refuseStream", "key == \"?\" && c != nil {\n\t\t\treturn i.refuseStream", inModule("stetgrpc")},
	{"gRPC: a stream passes unprotected", "stetgrpc/check.go", "if !i.o.stream(info.FullMethod) {", "if false {", inModule("stetgrpc")},
	{"gRPC: a call that was broken off below is an outcome", "stetgrpc/unary.go", "return end.Outcome(), errors.Join(c.err, cause)", "return end.Outcome(), c.err", inModule("stetgrpc")},
	{"gRPC: what is not known counts as not executed", "internal/rpc/condition.go", "\t\t}\n\t}\n\treturn stet.MayHaveExecuted\n", "\t\t}\n\t}\n\treturn stet.NotExecuted\n", inModule("stetgrpc")},
	{"gRPC: replays look like first answers", "stetgrpc/unary.go", "c.reply(run.Outcome().Type)), nil, true)", "c.reply(run.Outcome().Type)), nil, false)", inModule("stetgrpc")},
	{"Connect: fields of a call that was rolled back are sent", "stetconnect/call.go", "\t\tc.retract() // what an earlier call said, whose transaction was not committed\n", "", inModule("stetconnect")},
	{"Connect: a stream with a key passes", "stetconnect/stream.go", "key != \"\" || wrong != nil {", "key == \"?\" && wrong != nil {", inModule("stetconnect")},
	{"Gin: what is around adds to a response that stands", "stetgin/stetgin.go", "\tif x.Written() || x.wrote {\n\t\tx.c.Writer = &sealed", "\tif false {\n\t\tx.c.Writer = &sealed", inModule("stetgin")},
	{"Gin: a second call begins behind the first", "stetgin/stetgin.go", "assign(c, &x.before) // whose handlers are yet to be called", "_ = x.before", inModule("stetgin")},
	{"Echo: an error in a transaction commits", "stetecho/stetecho.go", "stethttp.Returned(r.Context(), x.err)", "stethttp.Returned(r.Context(), nil)", inModule("stetecho")},
	{"Echo v4: an error in a transaction commits", "stetecho4/stetecho4.go", "stethttp.Returned(r.Context(), x.err)", "stethttp.Returned(r.Context(), nil)", inModule("stetecho4")},
	{"Fiber: an error in a transaction commits", "stetfiber/stetfiber.go", "stethttp.Returned(ctx, err)\n\t\tx.answerError(err)\n\t}", "stethttp.Returned(ctx, nil)\n\t\tx.answerError(err)\n\t}", inModule("stetfiber")},
	{"Fiber: a response that a timeout has cut is an outcome", "stetfiber/stetfiber.go", "if x.timedOut(parent) {\n\t\trun.Declare(stet.MayHaveExecuted, 0)\n\t\treturn", "if x.timedOut(parent) {\n\t\treturn", inModule("stetfiber")},
	{"Fiber: the rest of a body is the next request", "stetfiber/stetfiber.go", "resp.SetConnectionClose() // lest", "_ = resp // lest", inModule("stetfiber")},
	{"Watermill: a message that cannot be put aside is acknowledged", "stetwatermill/stetwatermill.go", "err := g.deadLetter(ctx, d.m, decision)\n\t\tif err == nil {", "err := g.deadLetter(ctx, d.m, decision)\n\t\tif err == nil || err != nil {", inModule("stetwatermill")},
	{"Watermill: two handlers share an operation", "stetwatermill/stetwatermill.go", "if d.op.Scope = d.handler; d.op.Scope == \"\" {", "if d.op.Scope = \"router\"; d.op.Scope == \"\" {", inModule("stetwatermill")},
	{"Lambda: those behind a failure in its group are begun", "stetlambda/sqs.go", "return // those behind it have to wait for it", "continue", inModule("stetlambda")},
	{"Lambda: what was not begun counts as handled", "stetlambda/sqs.go", "x.late.Add(1)\n\t\treturn false", "x.late.Add(1)\n\t\treturn true", inModule("stetlambda")},
	{"MCP: another session's call is the same", "stetmcp/call.go", "mcpcall.DeriveKey(c.req.Session.ID(), params.Name, args)", "mcpcall.DeriveKey(\"\", params.Name, args)", inModule("stetmcp")},
	{"MCP: a tool that asks for input has run", "stetmcp/call.go", "if c.res.InputRequests != nil {\n\t\treturn stet.Outcome{}, stet.Retryable(errAsks)", "if false {\n\t\treturn stet.Outcome{}, stet.Retryable(errAsks)", inModule("stetmcp")},
	{"a codec's panic is the handler's", "internal/coding/coding.go", "\tif value := recover(); value != nil {\n", "\tif value := any(nil); value != nil {\n", []string{".", "./codec/...", "-run", "Codec|Panic"}},
	{"responses: a refused request keeps its key from a corrected one", "stethttp/responses.go", "Forget: c.m.o.Responses == StoreExecuted || ", "Forget: ", some("Corrected|Executed", httpTests)},
	{"a 429 that stands looks like a refusal", "stethttp/executed.go", "\tcase refusing(status, contentType):\n", "\tcase false:\n", some("PassedOn", httpTests)},
	{"a refusal that was rolled back is told as executed", "stethttp/executed.go", "\tcase reason == store.ReasonNoEffect:\n\t\treturn stet.NotExecuted.String()\n", "", some("ReturnedError", httpTests)},
	{"a spoiled transaction is an outage of the store", "tx.go", "\tcase isAborted(err):\n", "\tcase false:\n", some("FaultOfTheHandler", postgresTests)},
	{"a constraint that fails at COMMIT is an outage of the store", "store/postgres/errors.go", "strings.HasPrefix(code, \"23\"), ", "", some("Spoiled", postgresTests)},
	{"the response of a spoiled transaction is sent", "stethttp/servetx.go", "\tcase again.Aborted(err):\n", "\tcase again.Aborted(err) && rw == nil:\n", some("FaultOfTheHandler", postgresTests)},
	{"a refusal after an effect outside is told as not executed", "tx.go", "marks&saysRepeatable == 0 {", "true {", some("AfterExecuting", httpTests)},
	{"a replay of another operation is told as this one's", "stethttp/executed.go", "\t\theader = header.without(name)\n", "\t\t_ = name\n", some("PassedOn", httpTests)},
}
