package rules

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/stet-go/stet/store"
)

// Window says which programs can use tables: programs that know version Min. A migration that a
// program of the version before can live with writes the column min_compatible beside the version.
// A deployment can then be rolled back without undoing the migration.
type Window struct{ Version, Min int }

// Refuse returns an error that wraps store.ErrNewerTables if a program that knows versions up to
// known cannot use the tables of place.
func (w Window) Refuse(place string, known int) error {
	if min(w.Version, w.Min) <= known {
		return nil
	}
	return fmt.Errorf("%w: those of %s have version %d, and this program knows versions up to %d: run the version that migrated them, or a later one", store.ErrNewerTables, place, w.Version, known)
}

// querier is a *sql.DB, a *sql.Conn or a *sql.Tx.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// ReadWindow reads the row of the table of versions, with all columns. It returns the zero value if
// there is no row. Tables that no such migration has changed have no column min_compatible.
func ReadWindow(ctx context.Context, q querier, query, version string) (w Window, err error) {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return w, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return w, err
	}
	if !rows.Next() {
		return w, rows.Err()
	}
	var least sql.NullInt64
	into := make([]any, len(names))
	for i, name := range names {
		switch into[i] = new(any); name {
		case version:
			into[i] = &w.Version
		case "min_compatible":
			into[i] = &least
		}
	}
	if err := rows.Scan(into...); err != nil {
		return w, err
	}
	if w.Min = w.Version; least.Valid {
		w.Min = int(least.Int64)
	}
	return w, rows.Err()
}
