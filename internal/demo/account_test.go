package demo

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// booked returns a row and the answer that acknowledges it.
func booked(id int64, p payment, receipt string) (charge, string) {
	c := charge{ID: id, Payment: p.Payment, Amount: p.Amount, Receipt: receipt}
	b, _ := json.Marshal(c)
	return c, string(b) + "\n"
}

func TestAccountFindsWhatWentWrong(t *testing.T) {
	p, other := payment{"order-1", 4200}, payment{"order-2", 700}
	first, firstBody := booked(1, p, "A")
	second, secondBody := booked(2, p, "B")
	wrong, _ := booked(1, payment{"order-1", 9900}, "A")
	othersRow, othersBody := booked(3, other, "C")
	acked := func(bodies ...string) map[string]int {
		m := map[string]int{}
		for _, b := range bodies {
			m[b] = 1
		}
		return m
	}
	for _, tc := range []struct {
		name   string
		told   []observed
		ledger []charge
		want   Result // the counts; Operations and Charges are filled in
		broken []string
	}{
		{"each charged once and told so", []observed{{payment: p, acks: acked(firstBody)}, {payment: other, acks: acked(othersBody)}},
			[]charge{first, othersRow}, Result{ExecutedOnce: 2}, nil},
		{"charged twice, one client told of each", []observed{{payment: p, acks: acked(firstBody, secondBody)}},
			[]charge{first, second}, Result{ExecutedTwice: 1, Overcharged: 4200, Differing: 1}, []string{"more than once: 1", "answers that differ: 1"}},
		{"charged twice, told of one only", []observed{{payment: p, acks: acked(secondBody)}},
			[]charge{first, second}, Result{ExecutedTwice: 1, Overcharged: 4200}, []string{"more than once: 1"}},
		{"acknowledged, not in the ledger", []observed{{payment: p, acks: acked(firstBody)}},
			nil, Result{Lost: 1}, []string{"lost"}},
		{"acknowledged with a receipt that is not in the ledger", []observed{{payment: p, acks: acked(secondBody)}},
			[]charge{first}, Result{ExecutedOnce: 1, Lost: 1}, []string{"lost"}},
		{"acknowledged with another's receipt", []observed{{payment: p, acks: acked(othersBody)}, {payment: other, acks: acked(othersBody)}},
			[]charge{first, othersRow}, Result{ExecutedOnce: 2, Lost: 1}, []string{"lost"}},
		{"acknowledged with something unreadable", []observed{{payment: p, acks: acked("OK")}},
			[]charge{first}, Result{ExecutedOnce: 1, Lost: 1}, []string{"lost"}},
		{"one charge, answers that differ by a byte", []observed{{payment: p, acks: acked(firstBody, firstBody+" ")}},
			[]charge{first}, Result{ExecutedOnce: 1, Differing: 1}, []string{"answers that differ: 1"}},
		{"never answered, not charged", []observed{{payment: p}},
			nil, Result{Lost: 1}, []string{"lost"}},
		{"never answered, charged", []observed{{payment: p}},
			[]charge{first}, Result{ExecutedOnce: 1, Lost: 1}, []string{"lost"}},
		{"parked", []observed{{payment: p, parked: true}},
			[]charge{first}, Result{ExecutedOnce: 1, Unknown: 1}, []string{"parked as unknown"}},
		{"parked for one client, acknowledged to another", []observed{{payment: p, parked: true, acks: acked(firstBody)}},
			[]charge{first}, Result{ExecutedOnce: 1}, nil},
		{"refused", []observed{{payment: p, refused: true}},
			nil, Result{Refused: 1}, []string{"refused"}},
		{"another amount than asked for", []observed{{payment: p, acks: acked(firstBody)}},
			[]charge{wrong}, Result{ExecutedOnce: 1, Lost: 1, Strays: 1}, []string{"lost", "no client asked for: 1"}},
		{"a charge that no client asked for", []observed{{payment: p, acks: acked(firstBody)}},
			[]charge{first, othersRow}, Result{ExecutedOnce: 1, Strays: 1}, []string{"no client asked for: 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want.Operations, tc.want.Charges = len(tc.told), len(tc.ledger)
			got := account(tc.told, tc.ledger)
			if got != tc.want {
				t.Errorf("account: got %+v\nwant %+v", got, tc.want)
			}
			broken := violations(got)
			if len(tc.broken) == 0 && len(broken) != 0 {
				t.Errorf("violations where there are none: %q", broken)
			}
			for _, want := range tc.broken {
				if !strings.Contains(strings.Join(broken, "\n"), want) {
					t.Errorf("violations are %q; %q is missing", broken, want)
				}
			}
		})
	}
}

// A result that does not add up must not pass because no single count is bad.
func TestResultThatDoesNotAddUpIsAViolation(t *testing.T) {
	for _, r := range []Result{{Operations: 3, ExecutedOnce: 2}, {Operations: 2, ExecutedOnce: 2, CutShort: true}} {
		if got := violations(r); len(got) != 1 {
			t.Errorf("%+v: violations: %q; want one", r, got)
		}
	}
}

func TestReportHasTheNamesThatScriptsReadByHeart(t *testing.T) {
	b, err := json.Marshal(Report{Violations: violations(Result{})})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{"without", "with"} {
		m, ok := got[side].(map[string]any)
		if !ok {
			t.Fatalf("%q is missing from %s", side, b)
		}
		for _, name := range []string{"attempts", "operations", "executed_once", "executed_twice", "lost", "replayed", "conflicts", "unknown"} {
			if _, ok := m[name].(float64); !ok {
				t.Errorf("%s.%s is not a number in %s", side, name, b)
			}
		}
	}
	if v, ok := got["violations"].([]any); !ok || len(v) != 0 {
		t.Errorf("violations is %v, want an empty list", got["violations"])
	}
}

func TestTableAndMeaningSayWhatTheCountsSay(t *testing.T) {
	fine := Report{
		Without: Result{Attempts: 90, Operations: 10, ExecutedOnce: 1, ExecutedTwice: 9, Overcharged: 123456},
		With:    Result{Attempts: 95, Operations: 10, ExecutedOnce: 10, Replayed: 33, Conflicts: 44, Kills: 3, InFlightAtKills: 21, CutOff: 4},
	}
	broken := fine
	broken.With.ExecutedOnce, broken.With.ExecutedTwice = 9, 1
	broken.Violations = violations(broken.With)
	mild := fine
	mild.Without = Result{Operations: 10, ExecutedOnce: 10}
	for _, tc := range []struct {
		report Report
		want   []string
		never  string
	}{
		{fine, []string{"charged twice or more                   9              0", "9 of 10 payments were charged more than once: 1234.56 EUR", "exactly once"}, "did not keep"},
		{broken, []string{"charged twice or more                   9              1", "did not keep its promise: payments charged more than once: 1"}, "exactly once"},
		{mild, []string{"too mild", "exactly once"}, "did not keep"},
	} {
		var b strings.Builder
		if err := tc.report.WriteTable(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%q is missing from:\n%s", want, b.String())
			}
		}
		if strings.Contains(b.String(), tc.never) {
			t.Errorf("%q in:\n%s", tc.never, b.String())
		}
	}
}

func TestConfigOutOfBoundsNamesTheFlagAndTheRemedy(t *testing.T) {
	good := Config{Payments: 1, Attempts: 1, Service: []string{"x"}}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]Config{
		"--payments is 0; give it 1 to 5000":    {Payments: 0, Attempts: 1, Service: good.Service},
		"--payments is 5001; give it 1 to 5000": {Payments: 5001, Attempts: 1, Service: good.Service},
		"--attempts is 21; give it 1 to 20":     {Payments: 1, Attempts: 21, Service: good.Service},
		"--kills is -1; give it 0 to 20":        {Payments: 1, Attempts: 1, Kills: -1, Service: good.Service},
		"Config.Service is empty":               {Payments: 1, Attempts: 1},
	} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if rep, err := Run(t.Context(), c); err == nil || !reflect.DeepEqual(rep, Report{}) {
			t.Errorf("Run went ahead with %+v", c)
		}
	}
}
