#!/usr/bin/env bash
# tests.sh: runs go test with the arguments given, and looks twice at a test that fails.
#
# Hundreds of tests start servers, kill processes and wait for leases to run out, many of
# them at a time. One that fails there is run by itself five times. If all five pass, it
# is named as unsteady in the last lines, and the run does not fail for it: it must be
# looked into, as it may show a defect that is rare. There is no second look at a data
# race, a panic, goroutines left over, a package that fails as a whole, or more than three
# tests.
set -uo pipefail
GO=${GO:-go}
TIMES=5
MOST=3

log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$GO" test "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" -ne 0 ] || exit 0

if grep -qE '^WARNING: DATA RACE|^panic: |^fatal error: |found unexpected goroutines|\[(build|setup) failed\]' "$log"; then
	echo "tests.sh: no second look: a race, a panic, goroutines left over, or a package that does not build"
	exit "$status"
fi
# One line a package that failed: its path, and its tests as a pattern ("" if it is none of them).
failed=$(awk '
	/^--- FAIL: / { tests = tests (tests == "" ? "" : "|") $3; next }
	/^FAIL\t/     { print $2 "\t" tests; tests = "" }
	/^ok /        { tests = "" }' "$log")
count=$(printf '%s\n' "$failed" | awk -F '\t' '{ n += $2 == "" ? 1000 : split($2, all, "|") } END { print n }')
if [ -z "$failed" ] || [ "$count" -gt "$MOST" ]; then
	echo "tests.sh: no second look: more than $MOST tests failed, or a package as a whole"
	exit "$status"
fi

flags=() # those of the first run, without the packages and the number of them at a time
skip=
for arg in "$@"; do
	case $skip$arg in
	-p) skip=yes ;;
	yes*) skip= ;;
	./* | .) ;;
	*) flags+=("$arg") ;;
	esac
done
while IFS=$'\t' read -r package tests; do
	echo "tests.sh: $TIMES times by themselves: $tests of $package"
	"$GO" test "${flags[@]}" -timeout 60m -count "$TIMES" -run "^($tests)\$" "$package" || exit "$status"
done <<<"$failed"
printf '%s\n' "$failed" | while IFS=$'\t' read -r package tests; do
	echo "UNSTEADY: ${tests//|/, } of $package failed once beside others, and passed $TIMES times alone: look into it, it may be a rare defect"
done
