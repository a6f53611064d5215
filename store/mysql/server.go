package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// header is what each transaction of the store reads of the server.
type header struct {
	now       micros
	step      int64 // between two numbers of AUTO_INCREMENT
	readOnly  int64
	flush     int64 // innodb_flush_log_at_trx_commit
	syncLog   int64 // sync_binlog
	binaryLog int64
}

const headerColumns = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), @@auto_increment_increment, @@global.read_only,
	@@global.innodb_flush_log_at_trx_commit, @@global.sync_binlog, @@global.log_bin`

func (h *header) into() []any {
	return []any{&h.now, &h.step, &h.readOnly, &h.flush, &h.syncLog, &h.binaryLog}
}

// refusal is an error if the server cannot be written to, or may lose writes.
//
// Without a binary log sync_binlog has no meaning. With one, recovery after a crash rolls back a
// transaction that InnoDB has on its disk, but the binary log has not.
func (h *header) refusal() error {
	switch {
	case h.readOnly != 0:
		return undone{errors.New("mysql: the server is read-only (read_only=ON); connect to the primary")}
	case h.flush != 1:
		return undone{fmt.Errorf("mysql: innodb_flush_log_at_trx_commit is %d, so the server may lose commits; set it to 1", h.flush)}
	case h.binaryLog != 0 && h.syncLog != 1:
		return undone{fmt.Errorf("mysql: sync_binlog is %d and the server has a binary log, so it may lose commits; set it to 1", h.syncLog)}
	}
	return nil
}

// checkServer refuses a server on which the store's promises do not hold.
func (s *Store) checkServer(ctx context.Context) error {
	var h header
	if err := s.db.QueryRowContext(ctx, "SELECT "+headerColumns).Scan(h.into()...); err != nil {
		return explain("open", err)
	}
	if err := h.refusal(); err != nil {
		return err
	}
	s.late.Store(h.binaryLog == 0)
	v, err := variables(ctx, s.db, "version", "max_allowed_packet", "wsrep_on")
	if err != nil {
		return explain("open", err)
	}
	if err := checkVersion(v["version"]); err != nil {
		return err
	}
	if strings.EqualFold(v["wsrep_on"], "ON") {
		return errors.New("mysql: the server is a node of a Galera cluster (wsrep_on=ON), for which this store is not made: its nodes certify a transaction at COMMIT")
	}
	s.packet, err = strconv.Atoi(v["max_allowed_packet"])
	if err != nil || s.packet < leastPacket {
		return fmt.Errorf("mysql: max_allowed_packet is %q; it must be at least %d (8 MiB), because a job and its steps are one row", v["max_allowed_packet"], leastPacket)
	}
	return checkReplica(ctx, s.db, v["version"])
}

// variables returns global variables of the server by name. A variable that it does not have is missing.
func variables(ctx context.Context, db *sql.DB, names ...string) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+strings.Join(names, "', '")+"')")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	values := make(map[string]string)
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		values[strings.ToLower(name)] = value
	}
	return values, rows.Err()
}

// checkVersion refuses servers without SKIP LOCKED.
func checkVersion(version string) error {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	enough := major >= 8
	if strings.Contains(version, "MariaDB") {
		enough = major > 10 || major == 10 && minor >= 6
	}
	if err != nil || !enough {
		return fmt.Errorf("mysql: the server has version %q; the store needs MySQL 8.0 or MariaDB 10.6, or later", version)
	}
	return nil
}

// checkReplica refuses a server that replicates from another. A user without the right to ask
// (REPLICATION CLIENT; in MariaDB SLAVE MONITOR) is not refused: read_only is checked in any case.
func checkReplica(ctx context.Context, db *sql.DB, version string) error {
	ask := "SHOW REPLICA STATUS"
	if strings.HasPrefix(version, "8.0.") && !strings.Contains(version, "MariaDB") {
		ask = "SHOW SLAVE STATUS" // before 8.0.22 there is no other
	}
	rows, err := db.QueryContext(ctx, ask)
	if numberOf(err) == errNoRight {
		return nil
	}
	if err != nil {
		return explain("open", err)
	}
	defer func() { _ = rows.Close() }()
	if rows.Next() {
		return errors.New("mysql: the server is a replica of another one; connect to the primary")
	}
	return explain("open", rows.Err())
}
