// Package stetconnect is being built.
package stetconnect
