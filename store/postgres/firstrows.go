package postgres

import "github.com/jackc/pgx/v5"

// read says that the rows of the first statement have been closed.
func (w *worked) read() { w.unread = w.unread && w.conn.IsClosed() }

// firstRows are rows of results that have to be closed, too.
type firstRows struct {
	pgx.Rows
	w       *worked
	results pgx.BatchResults
	err     error
}

// Next implements pgx.Rows.
func (r *firstRows) Next() bool {
	ok := r.Rows.Next()
	if !ok {
		r.Close()
	}
	return ok
}

// Scan implements pgx.Rows.
func (r *firstRows) Scan(into ...any) error { return r.closeAfter(r.Rows.Scan(into...)) }

// Values implements pgx.Rows.
func (r *firstRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	return values, r.closeAfter(err)
}

// closeAfter closes after an error, as pgx has done with the rows.
func (r *firstRows) closeAfter(err error) error {
	if err != nil {
		r.Close()
	}
	return err
}

// Close implements pgx.Rows.
func (r *firstRows) Close() {
	r.Rows.Close()
	if err := r.results.Close(); r.err == nil {
		r.err = err
	}
	r.w.read()
}

// Err implements pgx.Rows.
func (r *firstRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// firstRow is a row of results that have to be closed, too.
type firstRow struct {
	w       *worked
	results pgx.BatchResults
}

// Scan implements pgx.Row.
func (r firstRow) Scan(into ...any) error {
	err := r.results.QueryRow().Scan(into...)
	if closed := r.results.Close(); err == nil {
		err = closed
	}
	r.w.read()
	return err
}
