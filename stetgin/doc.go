// Package stetgin is being built.
package stetgin
