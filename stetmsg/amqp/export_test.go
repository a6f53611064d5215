package amqp

import "time"

// SetPatience replaces the 30 s that the server has for each answer.
func (r *Receiver) SetPatience(d time.Duration) { r.patience = d }
