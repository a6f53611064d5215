package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
	"github.com/stet-go/stet/store/memory"
	"github.com/stet-go/stet/store/sqlite"
)

// examineJSON runs doctor and returns its findings by name.
func examineJSON(t *testing.T, store string) (status int, found map[string]finding) {
	t.Helper()
	return examineWith(t, "--store", store)
}

// examineWith is examineJSON of the store that flags name.
func examineWith(t *testing.T, flags ...string) (status int, found map[string]finding) {
	t.Helper()
	status, out, errs := command(t, append([]string{"doctor", "-o", "json"}, flags...)...)
	var got struct {
		OK     bool
		Checks []finding
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	if got.OK != (status == exitOK) {
		t.Errorf("ok is %v, and the exit status %d", got.OK, status)
	}
	found = map[string]finding{}
	for _, f := range got.Checks {
		if !f.OK && f.Do == "" {
			t.Errorf("%s has no remedy", f.Check)
		}
		found[f.Check] = f
	}
	return status, found
}

func TestDoctorFindsAGoodStoreGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	status, found := examineJSON(t, path)
	if status != exitOK || len(found) < 12 {
		t.Errorf("status %d, %v", status, found)
	}
	if _, out, _ := command(t, "doctor", "--store", path); strings.Count(out, "✓") != len(found) || strings.Contains(out, "✗") {
		t.Errorf("got %s; want strings.Count(out, \"✓\") == len(found), not strings.Contains(out, \"✗\")", out)
	}
	if _, out, _ := command(t, "doctor", "--read-only", "--store", path); strings.Contains(out, "claim") {
		t.Errorf("it has claimed: %s", out)
	}
}

func TestDoctorWarnsOfAStoreInMemory(t *testing.T) {
	if status, found := examineJSON(t, "memory"); status != exitFailure || found["durability"].OK || !found["final"].OK {
		t.Errorf("status %d, %v", status, found)
	}
	if _, out, _ := command(t, "doctor", "--store", "memory"); !strings.Contains(out, "✗ durability") || !strings.Contains(out, "→ use an SQLite file") {
		t.Errorf("got %s; want strings.Contains(out, \"✗ durability\"), strings.Contains(out, \"→ use an SQLite file\")", out)
	}
}

func TestDoctorReportsAMissingServer(t *testing.T) {
	if status, found := examineJSON(t, "postgres://app:hunter2@127.0.0.1:1/none"); status != exitFailure || found["connects"].OK || strings.Contains(found["connects"].Found, "hunter2") {
		t.Errorf("status %d, %v", status, found)
	}
}

// Stores with a defect each, which the self-test has to find.
type defective struct {
	*memory.Store
	defect string
}

func (d defective) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	rec, err := d.Store.Claim(ctx, req)
	switch {
	case d.defect == "claim":
		return rec, errors.New("disk full")
	case d.defect == "conflict" && rec.State == store.Running:
		rec.Owner = req.Owner
	case d.defect == "mismatch":
		err = nil
	case d.defect == "replay" && rec.State == store.Completed:
		rec.Result = store.Result{}
	case d.defect == "clock":
		rec.ClaimedAt = rec.ClaimedAt.Add(time.Hour)
	}
	return rec, err
}

func (d defective) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	err := d.Store.Settle(ctx, c, out, keep)
	switch {
	case d.defect == "settle" && err == nil:
		return errors.New("disk full")
	case d.defect == "fence" && out.State == store.Completed, d.defect == "final" && out.State == store.Failed:
		return nil
	}
	return err
}

func TestSelfTestFindsDefects(t *testing.T) {
	for _, defect := range []string{"claim", "clock", "conflict", "mismatch", "fence", "settle", "replay", "final"} {
		var wrong []string
		for _, f := range selfTest(t.Context(), defective{memory.New(memory.Options{}), defect}) {
			if !f.OK {
				wrong = append(wrong, f.Check)
			}
		}
		if strings.Join(wrong, " ") != defect {
			t.Errorf("a store with a defect in %s: %v", defect, wrong)
		}
	}
}

// interrupted is a store whose caller is interrupted (Ctrl-C) in a call.
type interrupted struct {
	*memory.Store
	at     string
	cancel context.CancelFunc
	id     store.ID
	calls  int
}

func (i *interrupted) Claim(ctx context.Context, req store.ClaimRequest) (store.Record, error) {
	if ctx.Err() != nil {
		return store.Record{}, ctx.Err()
	}
	i.calls++
	i.id = req.ID
	rec, err := i.Store.Claim(ctx, req)
	if i.at == "claim" || i.at == "conflict" && i.calls == 2 {
		i.cancel()
		return store.Record{}, ctx.Err() // the reply is lost
	}
	return rec, err
}

func (i *interrupted) Settle(ctx context.Context, c store.Claim, out store.Settlement, keep store.Retention) error {
	if i.at == "settle" {
		i.cancel()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return i.Store.Settle(ctx, c, out, keep)
}

func (i *interrupted) Release(ctx context.Context, c store.Claim, keep store.Retention) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return i.Store.Release(ctx, c, keep)
}

func TestInterruptedSelfTestLeavesNoClaimAndBlamesNoDefect(t *testing.T) {
	for _, at := range []string{"claim", "conflict", "settle"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &interrupted{Store: memory.New(memory.Options{}), at: at, cancel: cancel}
		wrong := 0
		for _, f := range selfTest(ctx, s) {
			if !f.OK {
				wrong++
			}
			if strings.Contains(f.Do, "defect") {
				t.Errorf("at %s: %+v", at, f)
			}
		}
		rec, err := s.Read(t.Context(), s.id)
		if err != nil || rec.State != store.Retryable && rec.State != store.None || wrong != 1 || s.calls == 0 { // None: forgotten
			t.Errorf("interrupted at %s: the scratch operation is %v (%v), %d wrong", at, rec.State, err, wrong)
		}
	}
}

func TestDoctorFindsThatNoProcessCleansUp(t *testing.T) {
	now := time.Now().Add(-time.Hour)
	s := memory.New(memory.Options{Clock: func() time.Time { return now }})
	_, err := s.Claim(t.Context(), store.ClaimRequest{ID: store.Digest("", "a", "k"), Owner: store.NewOwner(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if f := cleanup(t.Context(), &storage{Store: s}); !f.OK {
		t.Errorf("at once: %v", f)
	}
	now = now.Add(time.Hour)
	if f := cleanup(t.Context(), &storage{Store: s}); f.OK || !strings.Contains(f.Found, "1 expired run") {
		t.Errorf("after an hour: %v", f)
	}
}

func TestDoctorKeysAndProxyWorkOnPostgreSQL(t *testing.T) {
	pool := emptyDatabase(t)
	url := os.Getenv("STET_POSTGRES_URL")
	if status, found := examineJSON(t, url); status != exitFailure || !strings.Contains(found["connects"].Found, "stet migrate") {
		t.Errorf("without tables: %d, %v", status, found)
	}
	must(t, "migrate", "up")
	status, found := examineJSON(t, url)
	for _, check := range []string{"fsync", "commit", "connections", "rights", "clean-up", "clock", "fence", "final"} {
		if !found[check].OK {
			t.Errorf("%s: %+v", check, found[check])
		}
	}
	if status != exitOK {
		t.Errorf("status %d", status)
	}
	b := openBooks(t, func() {})
	p := startProxy(t, "--upstream", b.URL, "--listen", "127.0.0.1:0", "--scope", "single-tenant", "--store", url)
	for i := range 2 {
		if status, body, replayed := pay(t, p.url, "k"); status != 201 || body != "charge 1 of k" || replayed != (i == 1) {
			t.Errorf("%d %q, replayed %v", status, body, replayed)
		}
	}
	if out := must(t, "keys", "get", "k", "--scope", "single-tenant", "--store", url); !strings.Contains(out, "completed") {
		t.Errorf("got %s; want strings.Contains(out, \"completed\")", out)
	}
	if out := must(t, "keys", "ls", "--state", "completed", "--scope", "single-tenant", "--store", url); strings.Count(out, "\n") != 2 {
		t.Errorf("got %s; want strings.Count(out, \"\\n\") == 2", out)
	}
	for setting, check := range map[string]string{"synchronous_commit": "commit"} {
		execSQL(t, pool, "ALTER DATABASE "+pool.Config().ConnConfig.Database+" SET "+setting+" = off")
		if _, found := examineJSON(t, url); found[check].OK {
			t.Errorf("%s is off, and %s is fine", setting, check)
		}
	}
}

// The proxy itself passes stet verify.
func TestVerifyPassesOnTheProxy(t *testing.T) {
	probe := freeAddr(t)
	p := startProxy(t, "--upstream", "http://"+probe, "--listen", "127.0.0.1:0", "--scope", "single-tenant", "--store", filepath.Join(t.TempDir(), "s.db"))
	status, out, errs := command(t, "verify", "--url", p.url+"/payments", "--probe", probe)
	t.Log(out)
	if status != exitOK {
		t.Errorf("status %d: %s", status, errs)
	}
}
