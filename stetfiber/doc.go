// Package stetfiber is being built.
package stetfiber
