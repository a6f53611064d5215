// Package stetmcp is being built.
package stetmcp
