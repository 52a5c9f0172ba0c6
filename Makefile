# What a person does with a checkout. Each target installs what it needs first (scripts/setup.sh);
# everything else is cargo, tests/apps and demo.

PREFIX ?= /usr/local
CARGO  ?= cargo

.DEFAULT_GOAL := help
.PHONY: help build demo test lint apps install clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build the command and the preload library, optimised (target/release)
	@scripts/setup.sh build
	$(CARGO) build --release -p cairn-preload -p cairn-cli

demo: ## Run LAMMPS on Cairn, kill it in the middle of a checkpoint, restart it, compare
	@scripts/setup.sh build demo
	$(CARGO) build --release -p cairn-preload -p cairn-cli
	demo/run.sh

test: ## Formatting, lints, documentation, every test
	@scripts/run-tests.sh

apps: ## The unmodified programs of tests/apps only
	@scripts/setup.sh build test
	$(CARGO) build -p cairn-preload -p cairn-cli
	tests/apps/run.sh

install: build ## Install below PREFIX (/usr/local)
	install -D -m 755 target/release/cairn $(DESTDIR)$(PREFIX)/bin/cairn
	install -D -m 644 target/release/libcairn_preload.so $(DESTDIR)$(PREFIX)/lib/libcairn_preload.so

clean: ## Remove what was built
	$(CARGO) clean
