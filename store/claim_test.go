package store

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestClaimIsReadFromItsText(t *testing.T) {
	for _, fence := range []int64{0, 1, 1 << 40, math.MaxInt64} {
		c := Claim{ID: Digest("", "shop", "k"), Owner: NewOwner(), Fence: fence}
		if got, err := ParseClaim(c.String()); got != c || err != nil || len(c.String()) != 117 {
			t.Errorf("of %s: %v, %v; want the claim itself, in 117 characters", c, got, err)
		}
	}
}

func TestOtherTextIsNoClaim(t *testing.T) {
	text := Claim{ID: Digest("", "shop", "k"), Owner: NewOwner(), Fence: 7}.String()
	for _, bad := range []string{
		"", "c1", text + " ", " " + text, text + "\n", text[:len(text)-1], "c2" + text[2:], strings.ToUpper(text),
		strings.Replace(text, ".", "-", 1), text[:len(text)-16] + "8000000000000000", text[:10] + "é" + text[12:],
	} {
		if got, err := ParseClaim(bad); !errors.Is(err, ErrInvalid) || got != (Claim{}) {
			t.Errorf("%q: %v, %v; want ErrInvalid", bad, got, err)
		}
	}
}
