package zookeeper

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stet-go/stet/store"
)

// sample is a settled record.
func sample() *node {
	return &node{exists: true, result: store.Result{Status: 201, Type: "text/plain", Head: []byte{1}, Body: []byte("body")}, head: head{
		Scope: bytes.Repeat([]byte{1}, 32), Fingerprint: bytes.Repeat([]byte{2}, 33), Owner: bytes.Repeat([]byte{3}, 16), Ref: []byte("order 1"),
		Class: "payments", Name: "POST /v1/payments", State: store.Completed, Attempt: 2, At: 1000, End: times{Expire: 5, Forget: 6}, Slot: slot{1005, 960}}}
}

// The stored form of releases is read by later ones.
func TestStoredFormIsFrozen(t *testing.T) {
	t.Parallel()
	const golden = "\x01\xa1\xa6\xf3\x46\xcd\x02" + `{"Scope":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","Fingerprint":"AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC","Owner":"AwMDAwMDAwMDAwMDAwMDAw==","Ref":"b3JkZXIgMQ==","Class":"payments","Name":"POST /v1/payments","State":2,"Attempt":2,"Gone":false,"At":1000,"End":{"Lease":0,"Expire":5,"Forget":6},"Slot":{"Due":1005,"In":960}}` +
		"\xc9\x01\x0atext/plain\x01\x01body"
	b, err := sample().marshal()
	if err != nil || string(b) != golden {
		t.Errorf("the stored form is\n%q, %v; want\n%q", b, err, golden)
	}
	n := &node{exists: true}
	if err := n.unmarshal([]byte(golden)); err != nil {
		t.Fatal(err)
	}
	got, want := n.record(1001), sample().record(1001)
	if got.State != want.State || got.Scope != want.Scope || got.Owner != want.Owner || got.Fingerprint != want.Fingerprint || got.Label != want.Label ||
		got.Attempt != want.Attempt || !got.Result.Equal(want.Result) || !got.ForgetAt.Equal(time.UnixMilli(1006)) || n.Slot != sample().Slot {
		t.Errorf("read back: %+v; want %+v", got, want)
	}
}

func TestDamagedBytesAreRecognised(t *testing.T) {
	t.Parallel()
	b, err := sample().marshal()
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		flipped := bytes.Clone(b)
		flipped[i] ^= 4
		for what, bytes := range map[string][]byte{"flipped": flipped, "cut": b[:i]} {
			if err := new(node).unmarshal(bytes); !errors.Is(err, store.ErrDamaged) {
				t.Fatalf("byte %d %s: %v; want ErrDamaged", i, what, err)
			}
		}
	}
}

func TestGreatestRecordFits(t *testing.T) {
	t.Parallel()
	s := openStore(t, servers(t))
	req := request("k")
	long := strings.Repeat("\u2028", store.MaxLabel/3) // JSON escapes it
	req.Label = store.Label{Class: long, Name: long, Ref: strings.Repeat("r", store.MaxRef)}
	out := completed("")
	out.Result.Body = make([]byte, MaxResult-out.Result.Size())
	if size := out.Result.Size(); size != MaxResult {
		t.Fatalf("the result has %d bytes; this test needs %d", size, MaxResult)
	}
	rec := mustClaim(t, s, req)
	if err := s.Settle(t.Context(), rec.Claim(), out, keep); err != nil {
		t.Fatal(err)
	}
	if now := mustRead(t, s, req.ID); now.Label != req.Label || !now.Result.Equal(out.Result) {
		t.Error("the greatest record is read with other content")
	}
	req.Label.Ref += "r"
	if _, err := s.Claim(t.Context(), req); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a label without room: %v; want ErrInvalid", err)
	}
	out.Result.Body = append(out.Result.Body, 0)
	if err := s.Settle(t.Context(), rec.Claim(), out, keep); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a result without room: %v; want ErrInvalid", err)
	}
}
