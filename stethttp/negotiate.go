package stethttp

import (
	"iter"
	"strconv"
	"strings"
	"time"
)

// preference returns the value of a preference (RFC 7240, section 2), and whether
// there is one of that name. The first one counts.
func preference(fields []string, name string) (value string, ok bool) {
	for _, field := range fields {
		for element := range elements(field) {
			preference, _, _ := cut(element, ';')
			if n, value, _ := cut(preference, '='); strings.EqualFold(n, name) {
				return strings.Trim(value, `"`), true
			}
		}
	}
	return "", false
}

// preferredWait returns the N of "Prefer: wait=N" (RFC 7240, section 4.3), and
// whether there is one. What cannot be understood is ignored, as section 2 has
// it.
func preferredWait(fields []string) (time.Duration, bool) {
	value, ok := preference(fields, "wait")
	seconds, err := strconv.ParseUint(value, 10, 31)
	if !ok || err != nil {
		return 0, false
	}
	return time.Duration(seconds) * time.Second, true
}

// accepts reports whether a request with these Accept-Encoding fields accepts
// each of the codings of a response's Content-Encoding fields (RFC 9110,
// section 12.5.3).
func accepts(accept, codings []string) bool {
	if len(accept) == 0 {
		return true
	}
	for _, field := range codings {
		for coding := range elements(field) {
			if coding != "" && !strings.EqualFold(coding, "identity") && !acceptsCoding(accept, coding) {
				return false
			}
		}
	}
	return true
}

func acceptsCoding(accept []string, coding string) bool {
	if listed, accepted := weigh(accept, coding); listed {
		return accepted
	}
	_, accepted := weigh(accept, "*")
	return accepted
}

// weigh reports whether a list with weights (RFC 9110, section 12.4.2) has value,
// and with another weight than 0. The first one counts.
func weigh(list []string, value string) (listed, accepted bool) {
	for _, field := range list {
		for element := range elements(field) {
			name, params, _ := cut(element, ';')
			if !strings.EqualFold(name, value) {
				continue
			}
			for params != "" {
				var param string
				param, params, _ = cut(params, ';')
				if name, weight, _ := cut(param, '='); strings.EqualFold(name, "q") {
					q, err := strconv.ParseFloat(weight, 32)
					return true, err == nil && q > 0
				}
			}
			return true, true
		}
	}
	return false, false
}

// elements yields the elements of a list, between commas, without white space
// around them.
func elements(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for more := true; more; {
			var element string
			if element, list, more = cut(list, ','); !yield(element) {
				return
			}
		}
	}
}

// cut is strings.Cut at the first sep outside of double quotes, without white
// space around the halves.
func cut(s string, sep byte) (before, after string, found bool) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == sep && !quoted:
			return strings.Trim(s[:i], " \t"), strings.Trim(s[i+1:], " \t"), true
		}
	}
	return strings.Trim(s, " \t"), "", false
}
