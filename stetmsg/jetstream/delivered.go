package jetstream

import (
	"strconv"
	"strings"
)

// delivered returns how often a message was delivered, from the subject of its
// acknowledgement: $JS.ACK.STREAM.CONSUMER.DELIVERED and four more numbers, or with the domain
// and a hash of the account before the stream, and perhaps more at the end. For other subjects
// it returns 0. jetstream.Msg.Metadata returns the same, but allocates.
func delivered(reply string) int {
	const before = "$JS.ACK."
	skip := 2
	switch dots := strings.Count(reply, "."); {
	case !strings.HasPrefix(reply, before), dots < 8, dots == 9:
		return 0
	case dots > 9:
		skip = 4
	}
	rest := reply[len(before):]
	for ; skip > 0; skip-- {
		_, rest, _ = strings.Cut(rest, ".")
	}
	number, _, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(number, 10, 30)
	if err != nil {
		return 0
	}
	return int(n)
}
