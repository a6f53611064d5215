package stetgrpc

import "time"

// SetRetryAfter replaces the second of RetryInfo. Call it before the first call.
func (i *Interceptor) SetRetryAfter(d time.Duration) { i.retryAfter = d }
