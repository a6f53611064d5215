#!/usr/bin/env bash
# tag.sh VERSION: makes a release of all modules of this repository that others import.
#
# It writes VERSION into the go.mod of each module, commits that as "stet: release VERSION",
# and tags the commit: VERSION for the main module, FOLDER/VERSION for each other one, as
# https://go.dev/ref/mod#vcs-version says. It pushes nothing: the last line says how to.
# A module keeps its replace directive, which counts only where it is built itself.
set -euo pipefail

version=${1:-}
if ! [[ $version =~ ^v(0|1)\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]]; then
	echo "usage: tag.sh VERSION, such as v0.3.0 or v1.0.0-rc.1" >&2
	exit 2
fi
cd "$(git rev-parse --show-toplevel)"
if [ -n "$(git status --porcelain)" ]; then
	echo "tag.sh: there are changes that are not committed; commit them, or put them away" >&2
	exit 1
fi

main=$(GOWORK=off go list -m)
folders=() # of modules that others import
for mod in contrib/*/go.mod; do
	folders+=("${mod%/go.mod}")
done
tags=("$version" "${folders[@]/%//$version}")
for tag in "${tags[@]}"; do
	if git rev-parse -q --verify "refs/tags/$tag" >/dev/null; then
		echo "tag.sh: the tag $tag is there already; nothing was changed" >&2
		exit 1
	fi
done

for folder in "${folders[@]}"; do
	file=$folder/go.mod
	for needed in "$main" "${folders[@]/#/$main/}"; do
		if GOWORK=off go mod edit -json "$file" | grep -qF "\"Path\": \"$needed\","; then
			GOWORK=off go mod edit -require "$needed@$version" "$file"
		fi
	done
done
git commit --quiet --allow-empty --all --message "stet: release $version"
for tag in "${tags[@]}"; do
	git tag --annotate --message "$main $tag" "$tag"
done
echo "tagged ${#tags[@]} modules; to publish them: git push --atomic origin HEAD ${tags[*]}"
