// Package stetecho is being built.
package stetecho
