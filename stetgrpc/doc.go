// Package stetgrpc is being built.
package stetgrpc
