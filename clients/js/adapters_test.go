package js

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stet-go/stet/internal/test/rig"
)

// The versions that the adapters are tested with, the oldest and the newest: docs/js.md has them in a table.
var (
	oldest = &folder{packages: []string{"pg@8.12.0", "express@npm:express@4.17.3", "fastify@5.0.0", "koa@2.16.0", "@koa/router@13.0.0", "hono@4.5.0", "@hono/node-server@1.19.0",
		"@nestjs/common@10.0.0", "@nestjs/core@10.0.0", "@nestjs/platform-express@10.0.0", "rxjs@7.8.0", "reflect-metadata@0.1.13"}}
	newest = &folder{packages: []string{"pg@8.23.1", "express@5.3.0", "express4@npm:express@4.21.2", "fastify@5.12.8",
		"compression@1.8.2", "cors@2.8.6", "@fastify/compress@9.2.0", "@fastify/cors@11.4.3", "drizzle-orm@0.45.4", "kysely@0.29.9", "knex@3.3.0",
		"koa@3.3.0", "@koa/router@15.7.0", "hono@4.13.19", "@hono/node-server@2.1.9",
		"@nestjs/common@12.5.1", "@nestjs/core@12.5.1", "@nestjs/platform-express@12.5.1", "@nestjs/platform-fastify@12.5.0", "rxjs@7.8.2", "reflect-metadata@0.2.2",
		"next@16.4.6", "react@19.2.0", "react-dom@19.2.0", "bullmq@6.7.0", "ioredis@6.0.0", "kafkajs@2.2.4", "playwright-core@1.65.1", "@modelcontextprotocol/sdk@1.32.2", "zod@4.6.7",
		"typescript@7.0.2", "@types/node@20.19.43", "@types/pg@8.23.1", "@types/express@5.0.6", "@types/koa@3.0.3", "@types/koa__router@12.0.5"}}
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
	dir := newest.dir(t)
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
	dir := newest.dir(t)
	compile(t, dir, filepath.Join("test", "programs", "nest.ts"))
	_, url := ledger(t)
	nodeTests(t, dir, []string{"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url}, 5, filepath.Join("test", "programs", "programs.test.js"))
}

func TestNextServerPaysOnce(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	_, url := ledger(t)
	nodeTests(t, dir, []string{"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url}, 1, filepath.Join("test", "next", "next.test.js"))
}

// suite runs a file of tests over frameworks, in the mode "functions".
func suite(t *testing.T, in *folder, frameworks, file string, want int) {
	dir := in.dir(t)
	_, url := ledger(t)
	env := []string{"STET_FRAMEWORKS=" + frameworks, "STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url, "STET_PROGRAM=" + rig.Stet(t)}
	nodeTests(t, dir, env, want, filepath.Join("test", file+".test.js"))
}

// Koa and Hono return their responses. Nothing else may be sent.
func TestKoaAndHonoSendStoredResponses(t *testing.T) {
	t.Parallel()
	dir := newest.dir(t)
	_, url := ledger(t)
	nodeTests(t, dir, []string{"STET_DATABASE=" + strings.Replace(url, "postgres@", "shop@", 1), "STET_OWNER=" + url}, 10, filepath.Join("test", "values", "*.test.js"))
}
