package proxy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Duration is a length of time above zero: "30s", "1h30m" or "30d".
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := parseDuration(n.Value)
	if err == nil && v == 0 {
		err = fmt.Errorf("%q must be longer than zero; leave the field out for its default", n.Value)
	}
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*d = Duration(v)
	return nil
}

// Delay is a length of time that can be zero.
type Delay struct {
	Set      bool // it was written
	Duration time.Duration
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Delay) UnmarshalYAML(n *yaml.Node) error {
	v, err := parseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*d = Delay{Set: true, Duration: v}
	return nil
}

// Every is an interval above zero, or "never", which is negative.
type Every time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (e *Every) UnmarshalYAML(n *yaml.Node) error {
	if n.Value == "never" {
		*e = -1
		return nil
	}
	return (*Duration)(e).UnmarshalYAML(n)
}

const day = 24 * time.Hour

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int64
		n, err = strconv.ParseInt(days, 10, 64)
		if err == nil && (n < 0 || n > math.MaxInt64/int64(day)) {
			err = strconv.ErrRange
		}
		d = time.Duration(n) * day
	}
	if err != nil {
		return 0, fmt.Errorf(`%q is no duration; write it like "30s", "1h30m" or "30d"`, s)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative", s)
	}
	return d, nil
}

// Size is a number of bytes above zero, also with KiB, MiB or GiB.
type Size int64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	text, unit := n.Value, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if before, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = strings.TrimSpace(before), 1<<(10*(i+1))
		}
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64/unit {
		return fmt.Errorf(`line %d: %q is no size; write it like "65536", "64KiB" or "1MiB"`, n.Line, n.Value)
	}
	*s = Size(v * unit)
	return nil
}
