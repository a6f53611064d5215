// Package stetwatermill is being built.
package stetwatermill
