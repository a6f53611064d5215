package main

import (
	"strings"
	"testing"
)

func TestGrantsToBothSidesAreCounted(t *testing.T) {
	parsed := func(text string) grants {
		all, err := parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	in := int(*calm / tick) // the first key while the network is cut
	a := grants{in: {10}, in + 1: {11}, in + 2: {12}, 7: {1}}
	b := grants{in: {10}, in + 2: {99}, 8: {2, 3}}
	want := tally{keys: 5, cut: 3, twice: 2, sameFence: 1, oneSide: 1, span: 2 * tick}
	if got := compare(a, b); got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
	if got := parsed("7 1\n8 2\n8 3\n"); len(got) != 2 || len(got[8]) != 2 {
		t.Errorf("parsed %v", got)
	}
	if _, err := parse(strings.NewReader("nonsense\n")); err == nil {
		t.Error("nonsense was parsed")
	}
	sum := want
	sum.add(want)
	if sum.keys != 10 || sum.span != 4*tick {
		t.Errorf("added up: %+v", sum)
	}
}
