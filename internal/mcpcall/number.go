package mcpcall

import (
	"math/big"
	"strings"
)

// maxExponent is the most digits of an exponent that is computed with.
const maxExponent = 18

// Number returns a JSON number in one form for each value: digits without zeros at either
// end, and a decimal exponent. Nothing is rounded, so that no two values become one:
// 1, 1.0 and 10e-1 are the same, 9007199254740993 and 9007199254740992 are not. A number
// whose exponent has more than 18 digits is returned unchanged. -0 is 0.
func Number(literal string) string {
	sign := ""
	rest := literal
	if strings.HasPrefix(rest, "-") {
		sign, rest = "-", rest[1:]
	}
	mantissa, exponent := rest, ""
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa, exponent = rest[:i], strings.TrimPrefix(rest[i+1:], "+")
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return "0"
	}
	if len(exponent) > maxExponent {
		return literal
	}
	exp := new(big.Int)
	if exponent != "" {
		exp.SetString(exponent, 10)
	}
	short := strings.TrimRight(digits, "0")
	exp.Add(exp, big.NewInt(int64(len(digits)-len(short)-len(fraction))))
	if exp.Sign() == 0 {
		return sign + short
	}
	return sign + short + "e" + exp.String()
}
