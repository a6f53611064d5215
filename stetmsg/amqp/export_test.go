package amqp

import "time"

// SetPatience replaces the 30 s that the server has for each answer.
func (r *Receiver) SetPatience(d time.Duration) { r.patience = d }

// SetRefusals replaces the 10 s for which the server may refuse what it will grant.
func (r *Receiver) SetRefusals(d time.Duration) { r.refusals = d }
