package main

import (
	"context"
	"fmt"
	"time"

	"github.com/stet-go/stet/store/mysql"
)

// mysql.Open refuses a server whose commits are not durable. These settings are of the host's crash, and of size.
var mysqlSettings = []serverSetting{
	{"commit", "SELECT @@global.innodb_flush_log_at_trx_commit", "1", "set it to 1: acknowledged writes could be lost"},
	{"binary log", "SELECT IF(@@global.log_bin, @@global.sync_binlog, 1)", "1", "set sync_binlog to 1: recovery after a crash rolls back what the binary log lacks"},
	{"pages", "SELECT IF(@@global.innodb_doublewrite IN ('OFF', '0'), 0, 1)", "1", "turn innodb_doublewrite on, unless the file system never tears pages"},
}

// mysqlServer checks a MySQL or MariaDB server.
func mysqlServer(ctx context.Context, s *mysql.Store) []finding {
	found := settingsOf(mysqlSettings, func(query string) (got string, err error) {
		return got, s.DB().QueryRowContext(ctx, query).Scan(&got)
	})
	var most, used int
	err := s.DB().QueryRowContext(ctx, "SELECT @@global.max_connections, (SELECT count(*) FROM information_schema.processlist)").Scan(&most, &used)
	const name = "connections"
	switch each := mysql.DefaultMaxConns; {
	case err != nil:
		return append(found, bad(name, err.Error(), "may this user read information_schema.processlist?"))
	case each*2 > most-used:
		return append(found, bad(name, fmt.Sprintf("%d of %d are in use, and a process takes up to %d beside those of the service", used, most, each),
			"there is no room for two more processes: raise max_connections"))
	default:
		return append(found, ok(name, "%d of %d are in use; a process takes up to %d beside those of the service", used, most, each))
	}
}

func lateInMySQL(ctx context.Context, s *mysql.Store) (late int, oldest time.Duration, err error) {
	var micros int64
	err = s.DB().QueryRowContext(ctx, `SELECT count(*), COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - min(due), 0) FROM
		(SELECT due FROM stet_records WHERE due < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - ? ORDER BY due LIMIT ?) AS late`,
		maxLag.Microseconds(), maxLate+1).Scan(&late, &micros)
	return late, time.Duration(micros) * time.Microsecond, err
}
