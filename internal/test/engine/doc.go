// Package engine has the tests of package stet that use its exported names only.
package engine
