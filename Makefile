# make test is all that a change must pass; see scripts/citest for its steps.

FUZZTIME ?= 2m
CITEST = mkdir -p .tmp && go build -o .tmp/citest ./scripts/citest && exec .tmp/citest

.PHONY: test quick bench generate fuzz crash

test: ## everything: format, vet, lint, generated code, tests, fuzz smoke, examples
	@$(CITEST)

quick: ## what needs no database: format, vet, lint, generated code
	@$(CITEST) format vet lint generated

generate: ## write all generated code of this repository again
	@$(CITEST) generate

bench: ## all benchmarks
	@$(CITEST) bench

fuzz: ## all fuzz targets, FUZZTIME each
	@$(CITEST) -limit 12h -fuzztime $(FUZZTIME) fuzz

crash: ## the tests that kill processes, with many more kills
	@$(CITEST) -limit 3h crash
