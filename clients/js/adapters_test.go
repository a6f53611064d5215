package js

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// The versions that the adapters are tested with, the oldest and the newest: docs/js.md has them in a table.
var (
	oldest = []string{"pg@8.12.0", "express@npm:express@4.17.3", "fastify@5.0.0", "koa@2.16.0", "@koa/router@13.0.0", "hono@4.5.0", "@hono/node-server@1.19.0",
		"@nestjs/common@10.0.0", "@nestjs/core@10.0.0", "@nestjs/platform-express@10.0.0", "rxjs@7.8.0", "reflect-metadata@0.1.13"}
	newest = []string{"pg@8.23.1", "koa@3.3.0", "@koa/router@15.7.0", "hono@4.13.19", "@hono/node-server@2.1.9",
		"@nestjs/common@12.5.1", "@nestjs/core@12.5.1", "@nestjs/platform-express@12.5.1", "@nestjs/platform-fastify@12.5.0", "rxjs@7.8.2", "reflect-metadata@0.2.2"}
)

// The tests of Express and Fastify run over the other frameworks.
func TestAdaptersKeepTheirPromises(t *testing.T) {
	t.Parallel()
	suite(t, newest, "koa,hono,next,nest,nest-fastify", "service", 120)
}

func TestAdaptersKeepTheirPromises_EndOfARun(t *testing.T) {
	t.Parallel()
	suite(t, newest, "koa,hono,next,nest,nest-fastify", "endings", 70)
}

// The same keys with a Go service, and behind the sidecar.
func TestAdaptersShareKeysWithGo(t *testing.T) {
	t.Parallel()
	dir := install(t, append([]string{"express@5.3.0", "fastify@5.12.8"}, newest...)...)
	pool, url := ledger(t)
	env := []string{"STET_FRAMEWORKS=koa,hono,next,nest,nest-fastify", "STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url,
		"STET_PROGRAM=" + rig.Stet(t), "STET_GO_URL=" + payments(t, pool)}
	nodeTests(t, dir, env, 5, filepath.Join("test", "mixed.test.js"))
	nodeTests(t, dir, env, 40, filepath.Join("test", "sidecar.test.js"))
}

func TestOldestVersionsKeepTheirPromises(t *testing.T) {
	t.Parallel()
	suite(t, oldest, "express,fastify,koa,hono,next,nest", "service", 140)
}

// The programs of docs/js.md run as they are there.
func TestProgramsOfTheAdaptersPayOnce(t *testing.T) {
	t.Parallel()
	dir := install(t, append(newest, compilers...)...)
	compile(t, dir, filepath.Join("test", "programs", "nest.ts"))
	_, url := ledger(t)
	nodeTests(t, dir, []string{"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url}, 5, filepath.Join("test", "programs", "programs.test.js"))
}

func TestNextServerPaysOnce(t *testing.T) {
	t.Parallel()
	dir := install(t, "pg@8.23.1", "next@16.4.6", "react@19.2.0", "react-dom@19.2.0")
	_, url := ledger(t)
	nodeTests(t, dir, []string{"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url}, 1, filepath.Join("test", "next", "next.test.js"))
}

// suite runs a file of tests over frameworks, in the mode "functions".
func suite(t *testing.T, packages []string, frameworks, file string, want int) {
	dir := install(t, packages...)
	_, url := ledger(t)
	env := []string{"STET_FRAMEWORKS=" + frameworks, "STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url, "STET_PROGRAM=" + rig.Stet(t)}
	nodeTests(t, dir, env, want, filepath.Join("test", file+".test.js"))
}

// Koa and Hono return their responses. Nothing else may be sent.
func TestKoaAndHonoSendStoredResponses(t *testing.T) {
	t.Parallel()
	dir := install(t, newest...)
	_, url := ledger(t)
	nodeTests(t, dir, []string{"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url}, 10, filepath.Join("test", "values", "*.test.js"))
}
