# Everything a contributor needs. `make` alone prints this list.

GO      ?= go
# The modules for frameworks and protocols. Each is tested with the versions that its own
# go.mod names, as its users build it; go.work is for editors.
CONTRIB := $(patsubst %/go.mod,%,$(wildcard contrib/*/go.mod))
PROOF   := internal/test/proof
MODULES := . $(PROOF) bench examples packaging store/dynamodb $(CONTRIB)
export GOWORK := off
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 60s
# Packages that are tested at a time: as many as processors in the main module, and half
# as many more in another beside it, as many tests wait for servers and for time to pass.
CORES    := $(shell getconf _NPROCESSORS_ONLN)
PACKAGES ?= $(CORES)
BESIDE   ?= $(shell echo $$((($(CORES) + 1) / 2)))

.DEFAULT_GOAL := help
.PHONY: help services size quick test $(addprefix test-in-,$(MODULES)) short lint versions-postgres alerts crashtest crashtest-long crashtest-postgres crashtest-client crashtest-messages crashtest-proxy crashtest-async crashtest-python crashtest-node crashtest-mixed crashtest-flow reconcile simulate model mutants \
	bench bench-postgres bench-mysql bench-tx bench-sql bench-redis bench-tier bench-zookeeper bench-messages bench-async bench-endtoend bench-scale compare trips fuzz demo diagram tidy release-check release-packages

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

services: ## Install the servers that tests start (Debian packages; needs root once)
	@./internal/test/rig/services.sh

# The packages that take minutes are begun first: they mostly wait, and would be
# waited for at the end.
SLOW       := ./store/redis ./store/postgres ./internal/test/rig
SLOW_PROOF := ./crashtest/...

# go test, with a second look at a test that fails (the script says which).
TESTS := GO="$(GO)" $(CURDIR)/internal/test/rig/tests.sh

test: services ## Run all tests of all modules, race detector on
	@$(MAKE) --no-print-directory -k -j 2 $(addprefix test-in-,$(MODULES))

test-in-.:
	$(GO) vet ./... && $(TESTS) -race -p $(PACKAGES) -timeout 30m $(SLOW) ./...

test-in-$(PROOF): SLOW_HERE := $(SLOW_PROOF)
test-in-packaging: RACE := # it builds and installs the program, and has no goroutines
RACE := -race
$(addprefix test-in-,$(filter-out .,$(MODULES))):
	cd $(@:test-in-%=%) && $(GO) vet ./... && $(TESTS) $(RACE) -p $(BESIDE) -timeout 30m $(SLOW_HERE) ./...

# Without servers, npm and pip. Processor time with compiled dependencies: 40 s.
QUICK := . ./canonical ./codec/... ./internal/archtest ./internal/test/engine ./stethttp ./stettest ./store ./store/memory
quick: ## Vet the main module and test the engine, net/http and the shape of the code (1 min)
	$(GO) vet ./... && $(GO) test $(QUICK)

short: ## Run the tests of the main module without the race detector
	$(GO) test ./...

size: ## Print the sizes of the code with their limits and aims
	$(GO) test ./internal/archtest -count 1 -run Budgets -v | grep limit

lint: ## Run golangci-lint on all modules (built from source the first time: some minutes)
	@for m in $(MODULES); do (cd $$m && echo "lint $$m" && $(GO) run $(LINT) run ./...) || exit 1; done

PAYMENTS = cd $(PROOF) && $(GO) test ./crashtest/payments -count 1 -timeout 6h -v -run
alerts: services ## Test the alert rules with promtool, and fire each by its fault under a real Prometheus (1 min)
	$(GO) test ./observe/stetmetrics -count 1 -v -run Alert

crashtest: services ## Kill a payments service 1,000 times, and its servers, on every store (3 min)
	$(PAYMENTS) 'NoFault|Herd|Zombies|Lost' -everywhere -kills 130 -server-kills 12 -network 24 -stops 8 -fills 7 -callers 10000 -lost 100 -zombies 20

crashtest-long: services ## The same ten times as long (an hour); see docs/maintainers/reports for one
	$(PAYMENTS) 'NoFault|Herd|Zombies|Lost' -everywhere -kills 1300 -server-kills 200 -network 240 -stops 80 -fills 70 -callers 10000 -lost 1000 -zombies 200

crashtest-postgres: services ## Kill the service 1,000 and PostgreSQL 200 times, lose 2,000 COMMITs, stop 200 processes
	$(PAYMENTS) 'NoFault/postgres_tx|Zombies/postgres|Lost' -everywhere -kills 1000 -server-kills 200 -network 0 -stops 0 -lost 1000 -zombies 100

crashtest-client: ## 20,000 calls of the client to a hostile server, and 500 clients killed (1 min)
	$(GO) test ./stetclient -count 1 -timeout 10m -v -run 'Hostile|Killed' -calls 10000 -kills 500

crashtest-messages: services ## 10,000 messages on three brokers and a Kafka cluster over two stores, 50 consumers and 200 relays killed on each (30 min)
	cd $(PROOF) && $(GO) test ./crashtest/messages -count 1 -timeout 5h -v -run NoKill -clusters -messages 10000 -kills 50 -relay-kills 200 -restarts 2

crashtest-async: services ## Kill the processes of accepted operations 500 times in seven flavours, restart what carries them (35 min)
	cd $(PROOF) && $(GO) test ./crashtest/async -count 1 -timeout 3h -v -run NoKill -kills 500 -restarts 2

CRASHTEST_OF = cd $(PROOF) && $(GO) test ./crashtest/languages -count 1 -timeout 60m -v -run
crashtest-python: services ## Kill services in Python 300 times, sidecars 200 times, PostgreSQL 20 times; stop 20 processes (10 min)
	$(CRASHTEST_OF) Python -kills 300 -sidecar-kills 200 -server-kills 20 -pauses 20

crashtest-node: services ## The same with services in Node (10 min)
	$(CRASHTEST_OF) Node -kills 300 -sidecar-kills 200 -server-kills 20 -pauses 20

crashtest-mixed: services ## Services in Go, Python and Node and a consumer on the same keys, killed 300 times (10 min)
	$(CRASHTEST_OF) Together -kills 300 -server-kills 10 -pauses 10

crashtest-flow: services ## Accepted operations and messages: kill services, sidecars, workers, consumers 520 times, servers 20 times; stop 20 processes (10 min)
	$(CRASHTEST_OF) Accepted -kills 220 -sidecar-kills 300 -server-kills 20 -pauses 10

reconcile: services ## Resolve 100,000 unknown records by four reconcilers at a time, on every store (10 min)
	$(GO) test ./reconcile -count 1 -run Four -records 100000 -timeout 60m -v

crashtest-proxy: ## Kill the proxy 200 times under load (2 min)
	$(GO) test ./cmd/stet -count 1 -timeout 20m -v -run Killed -proxy.kills 200

SEEDS_OF = | xargs -P $$(nproc) -I{} $(GO) test ./simulate -count 1 -timeout 0 -v -run Seeds -seeds 50000 -from {}

simulate: ## Run a million schedules of the real engine, by seed, and 200,000 each of transactions and of accepted operations
	cd $(PROOF) && seq 0 50000 950000 $(SEEDS_OF)
	cd $(PROOF) && seq 0 50000 150000 $(SEEDS_OF) -tx
	cd $(PROOF) && seq 0 50000 150000 $(SEEDS_OF) -accepted

model: ## Search every state of the protocol (2 min)
	cd $(PROOF) && $(GO) test ./model -count 1 -timeout 30m -v -run NoOrder -late 1

mutants: services ## Break the product in some 190 ways, each of which the tests must notice (an hour)
	cd $(PROOF) && $(GO) run ./mutants

bench: ## Measure the middleware of each framework beside the framework alone, and the SQLite store beside a transaction each (4 min)
	cd bench && $(GO) run ./adapters && $(GO) run ./pairs

versions-postgres: services ## Run the tests of the SQL functions on PostgreSQL 13, 14, 16, 17 and 18 from npm (7 min)
	./store/postgres/versions.sh

bench-postgres: services ## Measure the PostgreSQL store beside what one writes by hand (4 min)
	cd bench && $(GO) run ./postgres

bench-mysql: services ## Measure the MySQL store on MariaDB beside what one writes by hand (3 min)
	cd bench && $(GO) run ./mysql

bench-tx: services ## Measure Go's transaction with a record beside a table by hand: the store alone, and a service over a network (5 min)
	cd bench && $(GO) run ./postgres -only cdgij -each 500ms -rounds 7 && $(GO) run ./endtoend -contenders bare,byhand,stet_tx -budget 150s

bench-sql: services ## Measure transactions by pgbench, psycopg, node-postgres, FastAPI and Express, beside bare ones, tables by hand and two libraries (7 min)
	cd bench && $(GO) run ./sql

bench-redis: services ## Measure the Redis store beside redis-benchmark with the same scripts (5 min)
	cd bench && $(GO) run ./redis

bench-zookeeper: services ## Measure the ZooKeeper store beside a lock znode and a result znode by hand (2 min)
	cd bench && $(GO) run ./zookeeper

bench-tier: services ## Measure the tier of Redis and PostgreSQL beside the pattern by hand, and the memory of Redis at a million settled keys (20 min)
	cd bench && $(GO) run ./tier $(TIER)

bench-async: services ## Measure operations from acceptance to outcome, beside River alone (4 min)
	cd bench && $(GO) run ./async

trips: services ## Count the round trips to PostgreSQL and Redis of each call as users make it
	cd bench && $(GO) run ./trips

bench-endtoend: services ## Measure a service over HTTP, a network and its stores, beside the bare handler, a table by hand and Fiber's middleware, and the sidecar beside nginx; count double executions (13 min)
	cd bench && $(GO) run ./endtoend -docs ../docs && $(GO) run ./endtoend sidecar -docs ../docs

bench-scale: services ## Measure operations at 10,000, a million and ten million records (12 min, 11 GB of disk)
	cd bench && $(GO) run ./scale $(SCALE)

bench-messages: services ## Measure consumers beside bare ones on the same broker
	cd bench && $(GO) run ./messages

compare: services ## Send the same requests to services with stet and with 14 other libraries, and count the executions (20 min)
	cd bench && $(GO) run ./compare -page ../docs/compare.md

fuzz: ## Run every fuzz target for FUZZTIME (60s)
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r f; do \
	  for t in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\).*/\1/p' $$f); do \
	    echo "== $$(dirname $$f) $$t"; $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$f) || exit 1; \
	  done; done

demo: ## What happens without stet and with it, in some seconds
	$(GO) run ./cmd/stet demo

diagram: ## Write docs/state-machine.md anew from the transition table
	$(GO) test -run StateMachine ./store -update

VERSION ?= 0.0.0-dev.1
release-packages: ## Build the packages of VERSION for all platforms in dist/ (10 min the first time)
	cd packaging && $(GO) run . -version $(VERSION) -out ../dist

release-check: services release-packages ## Check a release without publishing: build all packages twice, and test them (20 min)
	cd packaging && GOCACHE=$$(mktemp -d) $(GO) run . -version $(VERSION) -out ../dist-again
	diff --recursive --brief dist dist-again && rm -rf dist-again
	cd packaging && $(GO) test -tags machine ./... -count 1
	$(GO) test ./internal/release -count 1

tidy: ## Tidy the go.mod files
	@for m in $(MODULES); do (cd $$m && $(GO) mod tidy) || exit 1; done
