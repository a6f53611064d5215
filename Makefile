# Everything a contributor needs. `make` alone prints this list.

GO      ?= go
MODULES := . bench examples
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 60s

.DEFAULT_GOAL := help
.PHONY: help services test short lint crash ordeal-postgres bench bench-postgres fuzz demo diagram tidy

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

services: ## Install the servers that tests start (Debian packages; needs root once)
	@./internal/rig/services.sh

test: services ## Run all tests of all modules, race detector on
	@for m in $(MODULES); do echo "== go vet and test: $$m"; (cd $$m && $(GO) vet ./... && $(GO) test -race -timeout 10m ./...) || exit 1; done

short: ## Run the tests of the main module without the race detector
	$(GO) test ./...

lint: ## Run golangci-lint (built from source the first time: some minutes)
	$(GO) run $(LINT) run ./...

crash: ## Kill a payments service 500 times at every fault point, on SQLite
	$(GO) run ./internal/crash/cmd -cycles 500

ordeal-postgres: services ## Kill the service 1,000 and PostgreSQL 200 times, lose 2,000 COMMITs, stop 200 processes (10 min)
	$(GO) run ./internal/crash/cmd -store postgres -modes tx -cycles 1000 -server-kills 200 -lost 1000 -zombies 100

bench: ## Measure the overhead of the middleware and the speed of the embedded store
	cd bench && $(GO) run ./overhead && $(GO) run ./pairs

bench-postgres: services ## Measure the PostgreSQL store beside what one writes by hand, and under a sweep (5 min)
	cd bench && $(GO) run ./postgres && $(GO) run ./sweep

fuzz: ## Run every fuzz target for FUZZTIME (60s)
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r f; do \
	  for t in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\).*/\1/p' $$f); do \
	    echo "== $$(dirname $$f) $$t"; $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$f) || exit 1; \
	  done; done

demo: ## What happens without stet and with it, in some seconds
	$(GO) run ./cmd/stet demo

diagram: ## Write docs/state-machine.md anew from the transition table
	$(GO) test -run StateMachine . -update

tidy: ## Tidy the go.mod files
	@for m in $(MODULES); do (cd $$m && $(GO) mod tidy) || exit 1; done
