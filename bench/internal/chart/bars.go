package chart

import (
	"fmt"
	"slices"
	"strings"
)

// Bars draws values in groups, one bar of each series in each.
type Bars struct {
	Title  string
	Unit   string // of the values; the axis begins at 0, so that heights compare
	Groups []string
	Series []Bar // at most six
}

// Bar is one series: a value for each group, in their order.
type Bar struct {
	Name   string
	Values []float64
}

// SVG returns the document. It is an error if the figures cannot be drawn: none, a value
// that is negative or no number, or more series than there are colours.
func (b Bars) SVG() ([]byte, error) {
	var names []string
	var all []float64
	for _, s := range b.Series {
		if len(s.Values) != len(b.Groups) {
			return nil, fmt.Errorf("%q has %d values for %d groups", s.Name, len(s.Values), len(b.Groups))
		}
		names = append(names, s.Name)
		all = append(all, s.Values...)
	}
	if err := check(names, all...); err != nil {
		return nil, err
	}
	var s sheet
	s.begin(b, names, slices.Max(all))
	group := float64(right-left) / float64(len(b.Groups))
	bar := min(64, group*0.8/float64(len(b.Series)))
	for g, name := range b.Groups {
		middle := left + group*(float64(g)+0.5)
		for i, row := range wrap(name, group-8) {
			s.text("t", "middle", middle, bottom+18+15*float64(i), row)
		}
		for i, series := range b.Series {
			v := series.Values[g]
			x := middle + bar*(float64(i)-float64(len(b.Series))/2)
			s.printf(`<rect class="s%d f" x="%s" y="%s" width="%s" height="%s"/>`+"\n", i, px(x+1), px(s.y(v)), px(bar-2), px(bottom-s.y(v)))
			if bar >= long(short(v)) {
				s.text("m", "middle", x+bar/2, s.y(v)-5, short(v))
			}
		}
	}
	s.WriteString("</svg>\n")
	return s.Bytes(), nil
}

// desc has the figures in words, for readers who cannot see them.
func (b Bars) desc() string {
	var groups []string
	for g, name := range b.Groups {
		var values []string
		for _, s := range b.Series {
			values = append(values, s.Name+" "+short(s.Values[g]))
		}
		groups = append(groups, name+": "+strings.Join(values, ", "))
	}
	return strings.Join(groups, "; ") + "."
}

// wrap breaks words into at most three rows of a width.
func wrap(words string, most float64) []string {
	var rows []string
	for _, w := range strings.Fields(words) {
		last := len(rows) - 1
		if last >= 0 && (long(rows[last]+" "+w) <= most || last == 2) {
			rows[last] += " " + w
			continue
		}
		rows = append(rows, w)
	}
	return rows
}
