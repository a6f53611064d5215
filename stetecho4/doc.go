// Package stetecho4 is being built.
package stetecho4
