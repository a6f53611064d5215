package chart

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Lines draws values over a number.
type Lines struct {
	Title  string
	X, Y   Axis
	Series []Series // at most six
	Marks  []Mark
}

// Series is one line.
type Series struct {
	Name   string
	Points []Point // in the order of X
}

// Point is a value over X.
type Point struct{ X, Y float64 }

// manyPoints are so many that a line is drawn without markers, and its axis not by its points.
const manyPoints = 9

// SVG implements Drawing.
func (l Lines) SVG() ([]byte, error) {
	var names []string
	var xs, ys []float64
	for _, s := range l.Series {
		names = append(names, s.Name)
		for i, p := range s.Points {
			if i > 0 && p.X < s.Points[i-1].X {
				return nil, fmt.Errorf("the points of %q are not in the order of X", s.Name)
			}
			xs, ys = append(xs, p.X), append(ys, p.Y)
		}
	}
	if err := check(names, ys...); err != nil {
		return nil, err
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	if math.IsNaN(xs[0]) || math.IsInf(xs[len(xs)-1], 0) || xs[0] < 0 || l.X.Log && xs[0] == 0 {
		return nil, fmt.Errorf("an axis from %v to %v cannot be drawn", xs[0], xs[len(xs)-1])
	}
	var s sheet
	marker := func(i int, x, y float64) { s.marker(i, x, y) }
	s.begin(l.Title, l.desc(), l.Y, names, slices.Max(ys), l.Marks, marker)
	at := l.scale(xs)
	for _, x := range l.ticks(xs) {
		s.printf(`<line class="x" x1="%s" x2="%s" y1="%d" y2="%d"/>`+"\n", px(at(x)), px(at(x)), bottom, bottom+5)
		s.text("m", "middle", at(x), bottom+20, short(x))
	}
	for i, line := range l.Series {
		var path []string
		for _, p := range line.Points {
			path = append(path, px(at(p.X))+","+px(s.y(p.Y)))
		}
		s.printf(`<polyline class="s%d l" points="%s"/>`+"\n", i, strings.Join(path, " "))
		for _, p := range line.Points {
			if len(xs) < manyPoints {
				marker(i, at(p.X), s.y(p.Y))
			}
		}
	}
	return s.end(l.X.Name, l.Marks), nil
}

// scale returns where an X is. One X alone is in the middle.
func (l Lines) scale(xs []float64) func(float64) float64 {
	of := func(x float64) float64 { return x }
	if l.X.Log {
		of = math.Log
	}
	from, to := of(xs[0]), of(xs[len(xs)-1])
	if !l.X.Log && len(xs) >= manyPoints {
		from = 0
	}
	const pad = 24
	return func(x float64) float64 {
		if to == from {
			return (left + right) / 2
		}
		return left + pad + (of(x)-from)/(to-from)*(right-left-2*pad)
	}
}

// ticks returns the values that the axis of X names: its own where they are few.
func (l Lines) ticks(xs []float64) []float64 {
	if len(xs) < manyPoints || l.X.Log {
		return xs
	}
	most := xs[len(xs)-1]
	var ticks []float64
	step := nice(most / 8)
	for x := 0.0; x <= most*(1+1e-9); x += step {
		ticks = append(ticks, x)
	}
	return ticks
}

// desc tells the figures in words, for those who cannot see them.
func (l Lines) desc() string {
	var lines []string
	for _, s := range l.Series {
		if len(s.Points) >= manyPoints {
			last := s.Points[len(s.Points)-1]
			lines = append(lines, fmt.Sprintf("%s: %s at the end", s.Name, short(last.Y)))
			continue
		}
		var points []string
		for _, p := range s.Points {
			points = append(points, fmt.Sprintf("%s at %s", short(p.Y), short(p.X)))
		}
		lines = append(lines, s.Name+": "+strings.Join(points, ", "))
	}
	return strings.Join(lines, "; ") + "."
}

// marker draws the shape of a series.
func (s *sheet) marker(i int, x, y float64) {
	shapes := [series]string{
		"M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z", "M-4 -4h8v8h-8z", "M0 -5.5L5.5 4.5H-5.5z",
		"M0 -6L6 0L0 6L-6 0z", "M-5.5 -4.5H5.5L0 5.5z", "M-1.7 -5h3.4v3.3h3.3v3.4h-3.3v3.3h-3.4v-3.3h-3.3v-3.4h3.3z",
	}
	s.printf(`<path class="s%d f" transform="translate(%s %s)" d="%s"/>`+"\n", i, px(x), px(y), shapes[i])
}
