package stethttp

import (
	"iter"
	"strconv"
	"strings"
	"time"
)

// preferredWait returns the N of "Prefer: wait=N" (RFC 7240, section 4.3), and
// whether there is one. The first one counts; what cannot be understood is
// ignored, as section 2 has it.
func preferredWait(fields []string) (time.Duration, bool) {
	for _, field := range fields {
		for element := range elements(field) {
			preference, _, _ := cut(element, ';')
			name, value, _ := cut(preference, '=')
			if !strings.EqualFold(name, "wait") {
				continue
			}
			seconds, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31)
			if err != nil {
				return 0, false
			}
			return time.Duration(seconds) * time.Second, true
		}
	}
	return 0, false
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
	wildcard := false
	for _, field := range accept {
		for element := range elements(field) {
			name, params, _ := cut(element, ';')
			_, weight, _ := cut(params, '=')
			q, err := strconv.ParseFloat(weight, 32)
			accepted := weight == "" || err == nil && q > 0
			if strings.EqualFold(name, coding) {
				return accepted
			}
			wildcard = wildcard || name == "*" && accepted
		}
	}
	return wildcard
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
