package store

import (
	"encoding/binary"
	"encoding/hex"
	"regexp"
)

// claimText is what Claim.String returns: a version, ID, owner and fence.
var claimText = regexp.MustCompile(`^c1\.([0-9a-f]{64})\.([0-9a-f]{32})\.([0-7][0-9a-f]{15})$`)

// String returns the claim as text, for a header or an argument of SQL: 117 characters
// of a to z, 0 to 9 and the full stop. It is a secret while the operation runs: by it the
// outcome can be written.
func (c Claim) String() string {
	return "c1." + c.ID.String() + "." + c.Owner.String() + "." + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(c.Fence)))
}

// ParseClaim returns the claim whose String is text. Anything else is an error that wraps
// ErrInvalid.
func ParseClaim(text string) (c Claim, err error) {
	parts := claimText.FindStringSubmatch(text)
	if parts == nil {
		return c, invalid("this is not a claim, as Claim.String returns it")
	}
	var fence [8]byte
	for i, into := range [][]byte{c.ID[:], c.Owner[:], fence[:]} {
		if _, err := hex.Decode(into, []byte(parts[i+1])); err != nil {
			return Claim{}, invalid("this is not a claim: %w", err)
		}
	}
	c.Fence = int64(binary.BigEndian.Uint64(fence[:]))
	return c, nil
}
