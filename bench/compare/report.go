package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// result has the findings of a run, by contender and scenario.
type result struct {
	choice
	findings map[string]map[string]string
}

// count is how many scenarios of a contender have one of some findings.
func (r *result) count(contender string, findings ...string) (n int) {
	for _, finding := range r.findings[contender] {
		if slices.Contains(findings, finding) {
			n++
		}
	}
	return n
}

// twice is in how many scenarios a contender has executed an operation too often.
func (r *result) twice(contender string) (n int) {
	for _, finding := range r.findings[contender] {
		if strings.HasSuffix(finding, "×") {
			n++
		}
	}
	return n
}

// summary has one row for each contender.
func (r *result) summary() string {
	var b strings.Builder
	b.WriteString("| | store | passed | executed twice | wrong, leaks, lost, fails open | differs, refused | stuck, 500 | unknown |\n|---|---|---:|---:|---:|---:|---:|---:|\n")
	for _, group := range groups {
		for _, c := range r.contenders {
			if c.group != group {
				continue
			}
			title := c.title
			if group == ofStet {
				title = "**stet**: " + title
			}
			applied := len(r.scenarios) - r.count(c.name, none)
			fmt.Fprintf(&b, "| %s | %s | %d of %d | %d | %d | %d | %d | %d |\n", title, c.store, r.count(c.name, passed), applied, r.twice(c.name),
				r.count(c.name, wrong, leaked, lost, open), r.count(c.name, differs, refused), r.count(c.name, stuck, failed), r.count(c.name, unknown))
		}
	}
	return b.String()
}

// table has the scenarios of the contenders of a group.
func (r *result) table(group string) string {
	var of []contender
	for _, c := range r.contenders {
		if c.group == group {
			of = append(of, c)
		}
	}
	if len(of) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n| |", group)
	for _, c := range of {
		fmt.Fprintf(&b, " %s |", c.title)
	}
	b.WriteString("\n|---|" + strings.Repeat(":---:|", len(of)) + "\n")
	for _, s := range r.scenarios {
		fmt.Fprintf(&b, "| %s |", s.name)
		for _, c := range of {
			fmt.Fprintf(&b, " %s |", r.findings[c.name][s.name])
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (r *result) tables() string {
	parts := []string{}
	for _, group := range groups {
		if table := r.table(group); table != "" {
			parts = append(parts, table)
		}
	}
	return strings.Join(parts, "\n")
}

// write replaces the tables of a page.
func (r *result) write(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	for name, content := range map[string]string{"short": r.summary(), "tables": r.tables()} {
		begin, end := "<!-- "+name+": made by make compare -->\n", "<!-- end of "+name+" -->\n"
		before, rest, found := strings.Cut(string(text), begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			return fmt.Errorf("%s has no lines %q and %q", page, begin, end)
		}
		text = []byte(before + begin + content + end + after)
	}
	return os.WriteFile(page, text, 0o600)
}
