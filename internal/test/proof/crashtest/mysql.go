package crashtest

import (
	"context"
	"database/sql"
	"errors"

	"github.com/stet-go/stet/internal/test/rig"
	"github.com/stet-go/stet/store/mysql"
)

const (
	createMySQLEffects = "CREATE TABLE IF NOT EXISTS effects (id VARCHAR(64), scope VARCHAR(255), `key` VARCHAR(255), amount INT, part VARCHAR(255), " +
		"fence BIGINT, attempt INT, process INT, at BIGINT, emits BOOLEAN) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
	insertMySQLEffect  = "INSERT INTO effects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	selectMySQLEffects = "SELECT id, scope, `key`, amount, part, fence, attempt, process, at, emits FROM effects"
)

// InMySQL has an effect in a transaction.
func InMySQL(ctx context.Context, tx *sql.Tx, e Effect) error {
	_, err := tx.ExecContext(ctx, insertMySQLEffect, e.values()...)
	return err
}

// startMySQL starts a MariaDB server with a database.
func startMySQL(ctx context.Context, r *rig.Rig) (p Place, s Server, err error) {
	p.Kind = MySQL
	server, err := r.StartMariaDB(ctx, rig.MariaDBOptions{})
	if err != nil {
		return p, nil, err
	}
	name, err := server.CreateDatabase(ctx)
	p.URL = server.URL(name)
	return p, server, err
}

// prepareMySQL makes the tables.
func (p Place) prepareMySQL(ctx context.Context) error {
	if err := mysql.Migrate(ctx, p.URL); err != nil {
		return err
	}
	s, err := mysql.Open(ctx, p.URL, mysql.Options{})
	if err != nil {
		return err
	}
	_, err = s.DB().ExecContext(ctx, createMySQLEffects)
	return errors.Join(err, s.Close())
}

func (p Place) openMySQL(ctx context.Context, h *History) (*Site, error) {
	server, err := mysql.Open(ctx, p.URL, mysql.Options{})
	if err != nil {
		return nil, err
	}
	if p.Pool > 0 {
		server.DB().SetMaxOpenConns(p.Pool)
	}
	effects := func(ctx context.Context) ([]Effect, error) { return effectsOf(ctx, server.DB(), selectMySQLEffects) }
	return inTx(&Site{Store: server, MySQL: server, Effects: effects, Close: server.Close}, server, h, InMySQL), nil
}

// effectsOf reads the effects from a pool of database/sql.
func effectsOf(ctx context.Context, db *sql.DB, query string) (all []Effect, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var e Effect
		if err := e.scan(rows); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}
