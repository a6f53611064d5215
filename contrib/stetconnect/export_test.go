package stetconnect

import "time"

// SetRetryAfter replaces the second that refusals ask for. Call it before the first call.
func (i *Interceptor) SetRetryAfter(d time.Duration) { i.retryAfter = d }
