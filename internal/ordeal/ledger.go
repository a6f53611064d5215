package ordeal

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Charge is one effect, as the service answers it.
type Charge struct {
	ID     string `json:"id"` // random: two runs never make the same charge
	Scope  string `json:"scope"`
	Key    string `json:"key"` // the payment's idempotency key
	Amount int    `json:"amount"`
}

// Entry is a charge as the ledger has it, with who made it.
type Entry struct {
	Charge
	Fence   int64 `json:"fence"`
	Process int   `json:"process"`
	At      int64 `json:"at"` // on the clock of histories, just before it was written
}

// Ledger is the world outside of the store: a file for each process, to which
// entries are appended. It has no unique constraint, so that a second charge
// would show. It is not synced: processes are killed here, not the machine.
type Ledger struct{ f *os.File }

// OpenLedger creates the part of the ledger in dir that a process writes.
func OpenLedger(dir string, process int) (*Ledger, error) {
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("ledger-%06d", process)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Ledger{f: f}, nil
}

// Append adds an entry. When it returns, the charge has happened.
func (l *Ledger) Append(e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = l.f.Write(append(line, '\n'))
	return err
}

// Close closes the file.
func (l *Ledger) Close() error { return l.f.Close() }

// ReadLedger returns all entries of the ledger in dir.
func ReadLedger(dir string) ([]Entry, error) { return readLines[Entry](dir, "ledger-*") }
