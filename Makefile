# The one door to what a contributor runs. `make` lists it.
.DEFAULT_GOAL := help
.PHONY: help test slow race lint gate nightly flakes faults bench demo

help: ## list these
	@sed -nE 's/^([a-z]+): ## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

test: ## the quick tests of every module, 2 to 4 minutes: while you edit
	go test -short work

slow: ## the slow tests, about 5 minutes: when you changed what they test
	.ci/run setup slow

race: ## the quick tests of the library with the race detector, about 4 minutes: when you touched a goroutine
	.ci/run setup race

lint: ## gofumpt, go vet and golangci-lint
	.ci/run setup format lint

gate: ## everything that must pass before a change lands, about 10 minutes
	.ci/run

nightly: ## the part of the long checks whose last run in docs/nightly.md is the oldest, at most 25 minutes
	.ci/nightly

flakes: ## quick and slow tests five times next to a busy loop: when a test was FLAKY
	.ci/nightly flakes 5

faults: ## the fault suite, quick tier: breaks processes, servers, networks
	go run ./faults

bench: ## one process' speed on this machine
	go run ./cmd/drover bench

demo: ## webhooks to endpoints that fail in many ways
	go run ./cmd/drover demo
