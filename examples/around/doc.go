// Package around tests the middleware with what services put around it, and
// between it and their handlers: compressors, routers, adapters of frameworks, RPC.
package around
