package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// Charge is one effect, as the ledger has it and as the service answers it.
type Charge struct {
	ID     string `json:"id"`  // random: two runs never make the same charge
	Key    string `json:"key"` // the payment's idempotency key
	Amount int    `json:"amount"`
}

// Ledger is the world outside of the store: a file to which charges are
// appended, each synced. It has no unique constraint, so that a second charge
// would show.
type Ledger struct {
	mu sync.Mutex
	f  *os.File
}

// OpenLedger opens or creates the ledger at path.
func OpenLedger(path string) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Ledger{f: f}, nil
}

// Append adds a charge. When it returns, the charge has happened.
func (l *Ledger) Append(c Charge) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.f.Write(append(line, '\n')); err != nil { // one write: whole lines even after SIGKILL
		return err
	}
	return l.f.Sync()
}

// Close closes the file.
func (l *Ledger) Close() error { return l.f.Close() }

// ReadLedger returns all charges of the ledger at path; none if there is no
// such file.
func ReadLedger(path string) ([]Charge, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Charge
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var c Charge
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, fmt.Errorf("ledger line %d: %w", len(all)+1, err)
		}
		all = append(all, c)
	}
	return all, lines.Err()
}

// ledger returns the charges of the run, from the file or the table.
func (s *storm) ledger(ctx context.Context) (charges []Charge, err error) {
	if s.cfg.Mode != Tx {
		return ReadLedger(ledgerPath(s.dir))
	}
	back, err := open(ctx, s.dir, s.cfg.Postgres)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	return back.charges(ctx)
}
