//go:build !linux

package network

import "time"

func precise() {}

func sleepUntil(due time.Time) { time.Sleep(time.Until(due)) }
