// Package chart draws bars in groups as SVG.
//
// A chart has a background, and colours for light and for dark pages that follow the reader's
// system, so a page of Markdown can show it by an <img>. The same figures give the same bytes, so
// a chart in the repository changes only with them.
package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Save writes a chart to path, and makes its folder.
func Save(path string, b Bars) error {
	svg, err := b.SVG()
	if err != nil {
		return fmt.Errorf("chart %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, svg, 0o644)
}

const (
	width, height = 720, 400
	left, right   = 72, width - 20
	bottom        = height - 64
	series        = 6 // number of colours
)

// The colours of series hold a contrast of 3:1 to their background and differ for the
// colour-blind as well.
const style = `<style>
svg{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}
.bg{fill:#fff}.t{fill:#1f2328}.m{fill:#59636e}.g{stroke:#d1d9e0}.x{stroke:#59636e}
.s0{--c:#0969da}.s1{--c:#bc4c00}.s2{--c:#1a7f37}.s3{--c:#8250df}.s4{--c:#9a6700}.s5{--c:#cf2274}
.f{fill:var(--c)}
@media (prefers-color-scheme:dark){
.bg{fill:#0d1117}.t{fill:#f0f6fc}.m{fill:#9198a1}.g{stroke:#3d444d}.x{stroke:#9198a1}
.s0{--c:#4493f8}.s1{--c:#f0883e}.s2{--c:#3fb950}.s3{--c:#ab7df8}.s4{--c:#d29922}.s5{--c:#f778ba}
}
</style>
`

// sheet is a drawing in progress.
type sheet struct {
	bytes.Buffer
	top float64 // of the plot, below title and legend
	max float64 // what the top stands for
}

func (s *sheet) printf(format string, args ...any) { fmt.Fprintf(&s.Buffer, format, args...) }

// begin writes background, title, legend and the axis of Y.
func (s *sheet) begin(b Bars, names []string, most float64) {
	step := nice(most / 5)
	s.max = step * math.Ceil(most/step-1e-9)
	s.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n", width, height, width, height, escape(b.Title))
	s.printf("<title>%s</title>\n<desc>%s</desc>\n%s", escape(b.Title), escape(b.desc()), style)
	s.printf(`<rect class="bg" width="%d" height="%d" rx="6"/>`+"\n", width, height)
	s.printf(`<text class="t" x="16" y="27" font-size="16" font-weight="600">%s</text>`+"\n", escape(b.Title))
	x, line := 16.0, 50.0
	for i, name := range names {
		w := 26 + long(name)
		if x+w > right && x > 16 {
			x, line = 16, line+20
		}
		s.printf(`<rect class="s%d f" x="%s" y="%s" width="11" height="11" rx="2"/>`+"\n", i, px(x+1), px(line-10))
		s.text("t", "start", x+18, line, name)
		x += w + 8
	}
	s.text("m", "start", 16, line+22, b.Unit)
	s.top = line + 36
	for v := 0.0; v <= s.max+step/2; v += step {
		class := "g"
		if v == 0 {
			class = "x"
		}
		s.printf(`<line class="%s" x1="%d" x2="%d" y1="%s" y2="%s"/>`+"\n", class, left, right, px(s.y(v)), px(s.y(v)))
		s.text("m", "end", left-8, s.y(v)+4.5, short(v))
	}
}

func (s *sheet) text(class, anchor string, x, y float64, words string) {
	if words != "" {
		s.printf(`<text class="%s" text-anchor="%s" x="%s" y="%s">%s</text>`+"\n", class, anchor, px(x), px(y), escape(words))
	}
}

func (s *sheet) y(v float64) float64 { return bottom - v/s.max*(bottom-s.top) }

// check returns why v cannot be drawn.
func check(names []string, v ...float64) error {
	if len(names) == 0 || len(v) == 0 {
		return errors.New("there is nothing to draw")
	}
	if len(names) > series {
		return fmt.Errorf("%d series: there are colours for %d", len(names), series)
	}
	most := 0.0
	for _, f := range v {
		if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return fmt.Errorf("%v cannot be drawn: values are finite and not negative", f)
		}
		most = max(most, f)
	}
	if most == 0 {
		return errors.New("all values are 0: there is nothing to draw")
	}
	return nil
}

// nice returns the smallest of 1, 2, 2.5, 5 times a power of ten that is not below v.
func nice(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 2.5, 5} {
		if f*power >= v*(1-1e-9) {
			return f * power
		}
	}
	return 10 * power
}

// short writes a value of an axis with at most three digits that matter: 0.25, 1.5k, 10M.
func short(v float64) string {
	unit := ""
	for _, u := range []string{"k", "M", "G", "T"} {
		if math.Abs(v) < 999.5 {
			break
		}
		v, unit = v/1000, u
	}
	digits := 0
	for d := 1; d <= 3 && v != 0; d++ {
		if math.Abs(v) < math.Pow(10, float64(3-d)) {
			digits = d
		}
	}
	if v != 0 && math.Abs(v) < 0.01 {
		return strconv.FormatFloat(v, 'g', 3, 64) + unit
	}
	words := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(words, ".") {
		words = strings.TrimRight(strings.TrimRight(words, "0"), ".")
	}
	return words + unit
}

// long guesses how wide words are.
func long(words string) float64 { return 7 * float64(len([]rune(words))) }

// px writes a coordinate.
func px(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

func escape(words string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(words)) // a Buffer takes everything
	return b.String()
}
