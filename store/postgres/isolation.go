package postgres

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/stet-go/stet/store"
)

// inTxOptions are those of InTx's transactions: at READ COMMITTED, whatever the
// server's default. Above it a transaction cannot write to a row that a heartbeat has
// written to since it began, which is every row of a run that takes longer than a third
// of its lease.
func (s *Store) inTxOptions() (pgx.TxOptions, error) {
	o := s.o.TxOptions
	if o.BeginQuery != "" { // it says for itself
		begin := strings.ToLower(o.BeginQuery)
		for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
			if strings.Contains(begin, string(level)) {
				return o, suitsInTx(string(level))
			}
		}
		return o, nil
	}
	if o.IsoLevel == "" {
		o.IsoLevel = pgx.ReadCommitted
	}
	return o, suitsInTx(string(o.IsoLevel))
}

// suitsInTx returns nil for a level at which claims can be settled.
func suitsInTx(level string) error {
	switch strings.ToLower(level) {
	case "read committed", "read uncommitted": // which PostgreSQL takes for the same
		return nil
	}
	return fmt.Errorf("postgres: %w: InTx works at read committed, and this transaction is %s: what heartbeats write would keep it from being committed; nothing was done",
		store.ErrInvalid, level)
}
