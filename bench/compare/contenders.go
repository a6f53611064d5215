package main

// Stores of records.
const (
	inPostgres = "PostgreSQL"
	inRedis    = "Redis"
	inFile     = "SQLite"
	inMemory   = "memory"
)

// contender is a service, and the way in which it is protected.
type contender struct {
	name    string // of the variable WAY
	title   string // package and version, for people
	program string // below services; "" is this program
	store   string
	group   string
	sidecar bool // the service is behind stet proxy
}

// The groups, each of which has a table.
const (
	ofStet   = "stet"
	ofPython = "HTTP, Python"
	ofNode   = "HTTP, Node and Go"
	ofAgents = "Tools of agents, Python"
)

var groups = []string{ofStet, ofPython, ofNode, ofAgents}

const (
	inFastAPI = "service.py"
	inDjango  = "django_service.py"
	inNode    = "service.mjs"
)

var contenders = []contender{
	{name: "stet_tx", title: "Go, transaction", store: inPostgres, group: ofStet},
	{name: "stet_fastapi", title: "FastAPI, transaction", program: inFastAPI, store: inPostgres, group: ofStet},
	{name: "stet_express", title: "Express, transaction", program: inNode, store: inPostgres, group: ofStet},
	{name: "stet_agents", title: "agents, Python", program: inFastAPI, store: inPostgres, group: ofStet},
	{name: "stet_lease", title: "Go, lease", store: inPostgres, group: ofStet},
	{name: "stet_redis", title: "Go, lease in Redis", store: inRedis, group: ofStet},
	{name: "stet_sidecar", title: "stet proxy, lease", program: inFastAPI, store: inPostgres, group: ofStet, sidecar: true},

	{name: "asgi_idempotency_header", title: "asgi-idempotency-header 0.2.0", program: inFastAPI, store: inRedis, group: ofPython},
	{name: "fastapi_idempotency", title: "fastapi-idempotency 0.1.1", program: inFastAPI, store: inPostgres, group: ofPython},
	{name: "drf_idempotency", title: "drf-idempotency 1.0.0", program: inDjango, store: inRedis, group: ofPython},
	{name: "django_idempotency_key", title: "django-idempotency-key 1.3.0", program: inDjango, store: inRedis, group: ofPython},
	{name: "powertools_python", title: "AWS Powertools 3.37.0", program: inFastAPI, store: inRedis, group: ofPython},

	{name: "express_idempotency", title: "express-idempotency 1.0.6", program: inNode, store: inMemory, group: ofNode},
	{name: "node_idempotency", title: "@node-idempotency/core 1.0.11", program: inNode, store: inRedis, group: ofNode},
	{name: "node_idempotency_nest", title: "@node-idempotency/nestjs 1.0.4", program: inNode, store: inRedis, group: ofNode},
	{name: "powertools_node", title: "AWS Powertools 2.35.0", program: inNode, store: inRedis, group: ofNode},
	{name: "fiber", title: "Fiber 3.1.0", store: inRedis, group: ofNode},

	{name: "exactly_once", title: "exactly-once 0.2.1", program: inFastAPI, store: inRedis, group: ofAgents},
	{name: "agent_once", title: "agent-once 0.1.0", program: inFastAPI, store: inPostgres, group: ofAgents},
	{name: "agent_outbox", title: "agent-outbox 0.1.1", program: inFastAPI, store: inFile, group: ofAgents},
	{name: "idempotent_tools", title: "idempotent-tools 0.1.1", program: inFastAPI, store: inRedis, group: ofAgents},
}
