package main

// statements are the texts that pgbench, the drivers and the services send. Parameters are in the order of
// their numbers, because some drivers have no numbers. {t} is the contender's name.
var statements = map[string]string{
	"insert": "INSERT INTO ledger_{t} (key) VALUES ($1) RETURNING id",

	// By hand, first form: the key is inserted, and the response is stored by an update.
	"reserve": "INSERT INTO keys_{t} (key, fingerprint) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING true",
	"stored":  "SELECT fingerprint, status, content_type, body FROM keys_{t} WHERE key = $1",
	"store":   "UPDATE keys_{t} SET status = 201, content_type = 'application/json', body = $1 WHERE key = $2",

	// By hand, second form: the row of the key is read and locked before it is inserted.
	"locked": "SELECT fingerprint, status, content_type, body FROM keys_{t} WHERE key = $1 FOR UPDATE",
	"key":    "INSERT INTO keys_{t} (key, fingerprint) VALUES ($1, $2)",

	// The functions for packages, which compute digests and lock numbers.
	"begin_raw":  "SELECT action, fence, head, body FROM stet.stet_begin_raw($1, $2, $3, $4, $5, $6, $7, '', 'POST /payments', '', 86400)",
	"settle_raw": "SELECT stet.stet_settle_raw($1, $2, $3, $4, 201, 'application/json', NULL, $5, false, false, 86400, 2592000)",

	// The functions for psql.
	"begin":  "SELECT action, claim, body FROM stet.stet_begin('acct_1', $1, $2, name => 'POST /payments')",
	"settle": "SELECT stet.stet_settle($1, 201, NULL, 'application/json', $2)",

	// Plain statements, for a role that may write the table: as Go's store.
	"enter": `SELECT CASE
	WHEN r.state IN (2, 3) AND (r.forget_at IS NULL OR r.forget_at > statement_timestamp()) THEN 0
	WHEN pg_try_advisory_xact_lock(p.run_lock) THEN
		CASE WHEN pg_try_advisory_xact_lock(p.print_lock, p.print) THEN nextval('stet.records_fence'::regclass) ELSE nextval('stet.records_fence'::regclass) END
	WHEN pg_try_advisory_xact_lock_shared(p.print_lock, p.print) THEN -1
	ELSE 0 END AS fence, r.fingerprint, r.state, r.gone, r.expires_at, r.status, r.content_type, r.head, r.body
FROM (SELECT $1::bigint AS run_lock, $2::integer AS print_lock, $3::integer AS print, $4::bytea AS id) p LEFT JOIN stet.records r ON r.id = p.id`,
	"finish": `INSERT INTO stet.records AS r (id, scope, fingerprint, owner, fence, claimed_at, settled_at, expires_at, forget_at, due_at, attempt, state, status, content_type, name, body)
VALUES ($1, $2, $3, $4, $5, statement_timestamp(), statement_timestamp(), statement_timestamp() + interval '1 day', statement_timestamp() + interval '30 days',
	statement_timestamp() + interval '1 day', 1, 2, 201, 'application/json', 'POST /payments', $6) RETURNING pg_try_advisory_xact_lock($7)`,
}

// contenders of pgbench and of the drivers, in the order of the tables.
var ways = []string{"bare", "hand", "hand2", "raw", "psql", "statements"}

func tables(names []string) (sql string) {
	for _, name := range names {
		sql += "CREATE TABLE ledger_" + name + " (id bigserial PRIMARY KEY, key text NOT NULL);\n" +
			"CREATE TABLE keys_" + name + " (key text PRIMARY KEY, fingerprint bytea NOT NULL, status integer, content_type text, body bytea, created_at timestamptz NOT NULL DEFAULT now());\n"
	}
	return sql
}
