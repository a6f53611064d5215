// Package stetlambda is being built.
package stetlambda
