package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/stet-go/stet/store/internal/rules"
)

// schemaVersion is the version of the tables that this code reads and writes.
const schemaVersion = 2

// The primary key is the only unique index: a duplicate of it locks one row, and not the gap before
// it, at every isolation level. fence is drawn from the counter of AUTO_INCREMENT, which no deletion
// sets back.
//
// All names and texts are bytes, so that no collation and no character set of a connection changes or
// compares them.
//
// due is when the sweep must read the record: the lease or the result expires, or the record is
// deleted. queue is "j" and the name of a job that waits, or runs and may be repeated; "m" for a
// settled record with messages to send; "u" for an unknown record. queue_due is when Due or
// DueMessages returns it next. conn is the connection of the transaction that is running it,
// or has settled it.
//
// work is the job of an accepted operation until it is settled, and then its messages.
var schemaSteps = []string{
	`CREATE TABLE IF NOT EXISTS {meta} (
		one INT NOT NULL PRIMARY KEY, version INT NOT NULL, flushes BIGINT NOT NULL) ENGINE=InnoDB`,
	`CREATE TABLE IF NOT EXISTS {records} (
		id           BINARY(32)     NOT NULL PRIMARY KEY,
		fence        BIGINT         NOT NULL AUTO_INCREMENT,
		scope        VARBINARY(32)  NOT NULL,
		fingerprint  VARBINARY(33)  NOT NULL,
		owner        VARBINARY(16)  NOT NULL,
		state        TINYINT        NOT NULL,
		attempt      INT            NOT NULL,
		gone         TINYINT        NOT NULL,
		cancelling   TINYINT        NOT NULL,
		claimed      BIGINT         NOT NULL,
		lease        BIGINT,
		settled      BIGINT,
		expires      BIGINT,
		forget       BIGINT,
		due          BIGINT,
		queue        VARBINARY(256),
		queue_due    BIGINT,
		conn         BIGINT,
		class        VARBINARY(255) NOT NULL,
		name         VARBINARY(255) NOT NULL,
		ref          VARBINARY(12288) NOT NULL,
		status       SMALLINT,
		content_type VARBINARY(255),
		head         LONGBLOB,
		body         LONGBLOB,
		notes        LONGBLOB,
		work         LONGBLOB,
		KEY stet_fence (fence),
		KEY stet_due (due),
		KEY stet_queue (queue, queue_due, id)
	) ENGINE=InnoDB ROW_FORMAT=DYNAMIC`,
	`CREATE OR REPLACE VIEW {view} AS SELECT lower(hex(id)) AS id, lower(hex(scope)) AS scope,
		CONVERT(class USING utf8mb4) AS class, CONVERT(name USING utf8mb4) AS name, CONVERT(ref USING utf8mb4) AS ref,
		CASE state WHEN 1 THEN 'running' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed' WHEN 4 THEN 'retryable'
			WHEN 5 THEN 'unknown' WHEN 6 THEN 'accepted' END AS state,
		attempt, fence, gone, status, CONVERT(content_type USING utf8mb4) AS content_type, CONVERT(body USING utf8mb4) AS body,
		length(body) AS body_bytes, cancelling,
		TIMESTAMPADD(MICROSECOND, claimed, TIMESTAMP'1970-01-01 00:00:00') AS claimed_at, TIMESTAMPADD(MICROSECOND, lease, TIMESTAMP'1970-01-01 00:00:00') AS lease_until,
		TIMESTAMPADD(MICROSECOND, settled, TIMESTAMP'1970-01-01 00:00:00') AS settled_at, TIMESTAMPADD(MICROSECOND, expires, TIMESTAMP'1970-01-01 00:00:00') AS expires_at,
		TIMESTAMPADD(MICROSECOND, forget, TIMESTAMP'1970-01-01 00:00:00') AS forget_at, TIMESTAMPADD(MICROSECOND, queue_due, TIMESTAMP'1970-01-01 00:00:00') AS queue_due,
		lower(hex(fingerprint)) AS fingerprint, lower(hex(owner)) AS owner
		FROM {records}`,
	`CREATE TABLE IF NOT EXISTS {history} (
		seq     BIGINT           NOT NULL AUTO_INCREMENT PRIMARY KEY,
		id      BINARY(32)       NOT NULL,
		fence   BIGINT           NOT NULL,
		attempt INT              NOT NULL,
		at      BIGINT           NOT NULL,
		data    VARBINARY(4096)  NOT NULL,
		KEY stet_id (id, seq)
	) ENGINE=InnoDB ROW_FORMAT=DYNAMIC`,
	`INSERT IGNORE INTO {meta} (one, version, flushes) VALUES (1, 1, 0)`,
	`UPDATE {meta} SET version = 2 WHERE one = 1 AND version < 2`,
}

// Migrate makes the tables in the database that dsn names, unless they exist: stet_records, stet_meta,
// stet_history and the view stet_operations, with times in UTC. The user needs the right to create tables and views.
// Several processes can call it at the same time.
func Migrate(ctx context.Context, dsn string) error {
	config, err := parse(dsn)
	if err != nil {
		return err
	}
	db, err := pool(config, nil)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	t := statementsOf(config.DBName)
	w, err := readWindow(ctx, db, t.meta)
	if err == nil {
		err = w.Refuse(config.DBName, schemaVersion)
	}
	if err != nil || w.Version >= schemaVersion {
		return explain("migrate", err)
	}
	for _, step := range schemaSteps {
		if _, err := db.ExecContext(ctx, t.fill(step)); err != nil {
			return explain("migrate", err)
		}
	}
	return nil
}

// checkSchema refuses tables that this program cannot use.
func checkSchema(ctx context.Context, db *sql.DB, meta string) error {
	w, err := readWindow(ctx, db, meta)
	if err == nil {
		err = w.Refuse(meta, schemaVersion)
	}
	switch version := w.Version; {
	case err != nil:
		return explain("open", err)
	case version == 0:
		return errors.New("mysql: the tables do not exist; run 'stet migrate up', or call mysql.Migrate")
	case version < schemaVersion:
		return fmt.Errorf("mysql: the tables have version %d, and this program needs version %d; run 'stet migrate up', or call mysql.Migrate", version, schemaVersion)
	}
	return nil
}

// readWindow returns the version of the tables, 0 if there are none.
func readWindow(ctx context.Context, db *sql.DB, meta string) (rules.Window, error) {
	w, err := rules.ReadWindow(ctx, db, "SELECT * FROM "+meta+" WHERE one = 1", "version")
	if numberOf(err) == errNoTable {
		return rules.Window{}, nil
	}
	return w, err
}

// fromURL converts mysql://user:password@host:port/database?options to the driver's form.
func fromURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "", errors.New("mysql: the URL cannot be read; its form is mysql://user:password@host:3306/database")
	}
	var b strings.Builder
	if u.User != nil {
		b.WriteString(u.User.Username())
		if password, ok := u.User.Password(); ok {
			b.WriteString(":" + password)
		}
		b.WriteString("@")
	}
	host := u.Host
	if u.Port() == "" {
		host += ":3306"
	}
	fmt.Fprintf(&b, "tcp(%s)/%s", host, url.PathEscape(strings.TrimPrefix(u.Path, "/")))
	if u.RawQuery != "" {
		b.WriteString("?" + u.RawQuery)
	}
	return b.String(), nil
}
