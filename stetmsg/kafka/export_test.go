package kafka

// Waiting is how many records of a partition the receiver has been given and has
// not begun.
func (r *Receiver) Waiting(topic string, n int32) int {
	w := r.worker(topic, n)
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)
}
