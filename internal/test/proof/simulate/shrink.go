package simulate

import "slices"

// maxReplays bounds how often Shrink tries.
const maxReplays = 3000

// Shrink returns the report of a schedule that breaks the same promise as r does
// and of which no single step can be left out, or made simpler. It must be called
// in a bubble, like Run.
func Shrink(r Report, c Config) Report {
	logs := c.Log
	c.Log = false
	left := maxReplays
	// try replaces r if a simpler schedule breaks the same promise.
	try := func(s setup, script []step) bool {
		if left--; left < 0 {
			return false
		}
		got := replay(r.Seed, s, script, c)
		if got.Violation != r.Violation {
			return false
		}
		r = got
		return true
	}
	for again := true; again && left > 0; {
		again = shorten(&r, try)
		again = simplify(&r, try) || again
	}
	c.Log = logs
	return replay(r.Seed, r.setup, r.script, c)
}

// shorten leaves steps out: many at a time, then fewer.
func shorten(r *Report, try func(setup, []step) bool) (shorter bool) {
	for size := len(r.script) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(r.script); {
			if try(r.setup, slices.Delete(slices.Clone(r.script), at, at+size)) {
				shorter = true
			} else {
				at++
			}
		}
	}
	return shorter
}

// simplify makes the setup smaller, and single steps simpler.
func simplify(r *Report, try func(setup, []step) bool) (simpler bool) {
	for _, change := range []func(*setup){
		func(s *setup) { s.keys = 1 },
		func(s *setup) { s.processes = max(1, s.processes-1) },
		func(s *setup) { s.arrive = false },
		func(s *setup) { s.unsure = false },
	} {
		s := r.setup
		if change(&s); s != r.setup && !uses(r.script, s) {
			simpler = try(s, r.script) || simpler
		}
	}
	for x := range parts {
		s := r.setup
		if s.program &^= 1 << x; s != r.setup {
			simpler = try(s, r.script) || simpler
		}
	}
	for i := 0; i < len(r.script); i++ {
		for _, change := range []func(*step){
			func(s *step) {
				if s.act == lose || s.act == drop || s.act == delay {
					s.act = deliver
				}
			},
			func(s *step) { s.client.handler = succeeds },
			func(s *step) { s.client.patient = false },
			func(s *step) { s.client.obedient = false },
			func(s *step) { s.client.leaves = false },
			func(s *step) { s.client.print = 0 },
			func(s *step) { s.client.tx = false },
			func(s *step) { s.client.api = s.client.api && s.client.role == asks },
		} {
			if i >= len(r.script) {
				return true
			}
			script := slices.Clone(r.script)
			if change(&script[i]); script[i] != r.script[i] {
				simpler = try(r.setup, script) || simpler
			}
		}
	}
	return simpler
}

// uses reports whether a script needs more keys or processes than s has.
func uses(script []step, s setup) bool {
	return slices.ContainsFunc(script, func(st step) bool {
		return int(st.proc) >= s.processes || int(st.client.key) >= s.keys
	})
}
