package crash

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Main() // in a child
	os.Exit(m.Run())
}

func TestNoCrashMakesASecondChargeOrLosesOne(t *testing.T) {
	for _, mode := range []Mode{Tx, Park, Verify} {
		t.Run(string(mode), func(t *testing.T) {
			cfg := Config{Mode: mode, Seed: 1, Progress: func(s string) { t.Log(s) }}
			cfg.Cycles = 2 * len(points(cfg))
			rep, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range rep.Violations {
				t.Error(v)
			}
			t.Logf("%d kills, %d missed, %d payments, %d once, %d unknown", rep.Kills, rep.Missed, rep.Payments, rep.Once, rep.Unknown)
			if rep.Kills < len(points(cfg)) || rep.Once < 20 {
				t.Errorf("%d kills and %d payments prove too little", rep.Kills, rep.Once)
			}
			for _, p := range points(cfg) {
				if rep.At[p] == 0 {
					t.Errorf("nobody was killed at %s", p)
				}
			}
		})
	}
}

func TestJudgeBites(t *testing.T) {
	charge := Charge{ID: "c1", Key: "k", Amount: 5}
	const said = `{"id":"c1","key":"k","amount":5}`
	ok := Answer{Status: 201, Body: said}
	unknown := Answer{Status: 504}
	for name, c := range map[string]struct {
		answers      []Answer
		ledger       []Charge
		mayBeUnknown bool
		violations   int
	}{
		"all is well":                   {[]Answer{ok, ok}, []Charge{charge}, false, 0},
		"settled late":                  {[]Answer{unknown, ok}, []Charge{charge}, true, 0},
		"unknown":                       {[]Answer{unknown, unknown}, []Charge{charge}, true, 0},
		"charged twice":                 {[]Answer{ok}, []Charge{charge, charge}, false, 2},
		"told, not charged":             {[]Answer{ok}, nil, false, 1},
		"told another charge":           {[]Answer{ok}, []Charge{{ID: "c2", Key: "k", Amount: 5}}, false, 1},
		"no answer":                     {nil, []Charge{charge}, false, 1},
		"unknown where it shall not be": {[]Answer{unknown}, []Charge{charge}, false, 1},
		"two answers":                   {[]Answer{ok, {Status: 201, Body: said + " "}}, []Charge{charge}, false, 1},
		"known, then unknown":           {[]Answer{ok, unknown}, []Charge{charge}, true, 1},
		"refused":                       {[]Answer{{Status: 422}}, nil, false, 1},
		"nobody's charge":               {[]Answer{ok}, []Charge{charge, {ID: "c2", Key: "other"}}, false, 1},
	} {
		v := Judge(map[string][]Answer{"k": c.answers}, c.ledger, c.mayBeUnknown)
		if len(v.Violations) != c.violations {
			t.Errorf("%s: %q", name, v.Violations)
		}
	}
}
