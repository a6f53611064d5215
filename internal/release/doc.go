// Package release has tag.sh, which makes a release of all modules of this repository, and
// the tests of what a program gets that imports them. It has no code of its own.
package release
