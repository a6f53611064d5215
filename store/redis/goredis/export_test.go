package goredis

// Gathered returns how many commands wait for a lane.
func Gathered(c Conn) (n int) {
	var gs *gatherers
	switch c := c.(type) {
	case *serverClient:
		gs = c.together
	case *clusterClient:
		gs = c.together
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for _, g := range gs.of {
		g.mu.Lock()
		for w := g.first; w != nil; w = w.next {
			n++
		}
		g.mu.Unlock()
	}
	return n
}

// MostTogether returns how many commands a pipeline has after replies of so many bytes.
func MostTogether(replies ...int) int {
	var g gatherer
	for _, n := range replies {
		g.learn(n)
	}
	return g.most()
}
