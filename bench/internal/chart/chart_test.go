package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata anew")

// drawings are a plain chart and a difficult one.
func drawings() map[string]Bars {
	bars := Bars{
		Title:  "First requests, 64 callers",
		Unit:   "requests/s",
		Groups: []string{"no delay", "0.5 ms of network", "2 ms of network to the store"},
		Series: []Bar{
			{Name: "bare handler", Values: []float64{5200, 4100, 2900}},
			{Name: "stethttp.NewTx", Values: []float64{4000, 3500, 2700}},
		},
	}
	long := Bars{Title: `Names & <signs> that XML has "uses" for`, Unit: "GiB", Groups: []string{"a", "b"}}
	for i, name := range []string{"a series with a long name", "another with a name as long", "a third, for a legend of two rows", "four", "five", "six"} {
		long.Series = append(long.Series, Bar{Name: name, Values: []float64{float64(i), 0.25}})
	}
	return map[string]Bars{"bars": bars, "long": long}
}

// TestTheSameFiguresGiveTheSameBytes holds the drawings to those in testdata, which were looked at.
func TestTheSameFiguresGiveTheSameBytes(t *testing.T) {
	for name, d := range drawings() {
		path := filepath.Join("testdata", name+".svg")
		if *update {
			if err := Save(path, d); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.SVG(); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from testdata (look at it, then -update); error %v", path, err)
		}
	}
}

// TestDrawingsAreWellFormedAndStandAlone: an <img> shows nothing of a document that is not, or that needs another.
func TestDrawingsAreWellFormedAndStandAlone(t *testing.T) {
	for name, d := range drawings() {
		svg, err := d.SVG()
		if err != nil {
			t.Fatal(err)
		}
		in := xml.NewDecoder(bytes.NewReader(svg))
		for {
			token, err := in.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if e, is := token.(xml.StartElement); is {
				for _, a := range e.Attr {
					if a.Name.Local == "href" || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
						t.Errorf("%s: <%s %s=%q>", name, e.Name.Local, a.Name.Local, a.Value)
					}
				}
			}
		}
		if !bytes.Contains(svg, []byte("prefers-color-scheme:dark")) || bytes.Contains(svg, []byte("url(")) {
			t.Errorf("%s: not readable on dark pages, or not alone", name)
		}
	}
}

func TestInvalidFiguresAreRefused(t *testing.T) {
	one := func(v ...float64) Bars {
		return Bars{Groups: make([]string, len(v)), Series: []Bar{{Name: "a", Values: v}}}
	}
	many := Bars{Groups: []string{"a"}, Series: make([]Bar, series+1)}
	for i := range many.Series {
		many.Series[i] = Bar{Name: "a", Values: []float64{1}}
	}
	for name, b := range map[string]Bars{
		"nothing":          {},
		"no values":        one(),
		"all 0":            one(0, 0),
		"no number":        one(1, math.NaN()),
		"endless":          one(1, math.Inf(1)),
		"negative":         one(1, -1),
		"a value too few":  {Groups: []string{"a", "b"}, Series: []Bar{{Values: []float64{1}}}},
		"a value too many": {Groups: []string{"a"}, Series: []Bar{{Values: []float64{1, 2}}}},
		"too many series":  many,
	} {
		if _, err := b.SVG(); err == nil {
			t.Errorf("%s: drawn", name)
		}
	}
}

func TestAxesAreNamedInFewDigits(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.25: "0.25", 1: "1", 1.15: "1.15", 2.5: "2.5", 10: "10", 62.5: "62.5", 999: "999",
		1000: "1k", 1500: "1.5k", 12_345: "12.3k", 1e6: "1M", 1e7: "10M", 999.9: "1k", 0.004: "0.004", 250: "250", 100: "100"} {
		if got := short(v); got != want {
			t.Errorf("%v: %q, not %q", v, got, want)
		}
	}
	for v, want := range map[float64]float64{0.23: 0.25, 1: 1, 1.04: 2, 30: 50, 6: 10, 0.2: 0.2} {
		if got := nice(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("nice(%v) = %v, not %v", v, got, want)
		}
	}
}
