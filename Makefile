# Targets for people with a checkout. Each target first installs what it needs (scripts/setup.sh).
# The work is done by cargo, demo and tests/apps.

PREFIX ?= /usr/local
CARGO  ?= cargo

root    := $(DESTDIR)$(PREFIX)
program := target/release/cairn

.DEFAULT_GOAL := help
.PHONY: help build demo test apps slurm ml wheel wheel-old-glibc deb conformance soak sim fuzz guest interop pages bench install clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build the command and the libraries, optimised (target/release)
	@scripts/setup.sh build
	$(CARGO) build --release --locked -p cairn-preload -p cairn-cli
	@scripts/linked-libraries.sh target/release

demo: build ## Run LAMMPS on Cairn, kill it in the middle of a checkpoint, resume it, compare
	@scripts/setup.sh demo
	demo/run.sh

test: ## Formatting, lints, documentation, every test
	@scripts/run-tests.sh

apps: build ## The unmodified programs of tests/apps, those of MPI too, what arrives outside, and LAMMPS on a node that loses its memory
	@scripts/setup.sh build test demo mpi slurm allocators object-stores programs applications
	$(CARGO) build --locked -p cairn-preload -p cairn-cli
	tests/apps/run.sh --long
	CAIRN_BIN=target/debug tests/delivery/run.py
	tests/applications/run.py --rounds 1
	demo/memory-lost.sh

slurm: build ## srun, sbatch and the plug-ins of examples/slurm-*, on a private Slurm of two nodes, as root
	@scripts/setup.sh build mpi slurm
	CAIRN=$(program) tests/apps/run.sh --long slurm slurm_gres slurm_spank slurm_burst_buffer slurm_check

ml: build ## Training jobs: the Python package, and torch, transformers, Lightning and orbax killed in their saves (KILLS=n)
	@scripts/setup.sh build ml
	scripts/ml.sh $(KILLS)

wheel: build ## The Python package cairn-ckpt with the program and its libraries (python/dist)
	python/build.py

wheel-old-glibc: ## The same for glibc 2.28 and newer (RHEL 8), linked by zig, tried on Debian 11 where debootstrap is and root
	@scripts/setup.sh build wheel
	python/build-old-glibc.sh
	python/tests/old-glibc.sh

deb: build ## A Debian package of what install installs (target/cairn_VERSION_ARCH.deb)
	packaging/deb/build.sh

conformance: build ## fio with verification, stress-ng, POSIX cases and random calls, preloaded and mounted (CONFORMANCE_SECONDS=n)
	@scripts/setup.sh build test conformance
	scripts/conformance.sh
	CAIRN_TEST_SEEDS=$(or $(SEEDS),1000) $(CARGO) test --release --locked -p cairn-preload --test differential

soak: ## The crash, kill and model tests for hours instead of seconds (SEEDS=n)
	CAIRN_SOAK=1 CAIRN_TEST_SEEDS=$(or $(SEEDS),2000) $(CARGO) test --release --locked -p cairn-testing
	CAIRN_SOAK=1 $(CARGO) test --release --locked -p cairn-cli --test kill --test large_drains --test creation --test mounted
	CAIRN_SOAK=1 $(CARGO) test --release --locked -p cairn-preload --test storm

sim: ## A node on a virtual clock: replay SEED=n with its trace, or run SEEDS=n of them
	$(if $(SEED),CAIRN_SIM_TRACE=1 CAIRN_TEST_SEED=$(SEED)) CAIRN_TEST_SEEDS=$(or $(SEEDS),200) \
	$(CARGO) test --locked -p cairn-testing --test sim nodes_keep -- --nocapture

fuzz: ## Feed damaged metadata and media, operations, paths and texts, guided by coverage (FUZZ_SECONDS=n FUZZ_RUNS=n)
	@scripts/setup.sh build fuzz
	scripts/fuzz.sh

guest: ## Two memory nodes, memory limits and persistent memory, on machines of their own under QEMU
	@scripts/setup.sh build guest
	$(CARGO) build --locked -p cairn-preload -p cairn-cli
	scripts/guest.sh tests/guest/*.sh

pages: build ## The page of cairn report in a browser (Chromium), light and dark; PAGES=DIR keeps the pictures
	@scripts/setup.sh build pages
	scripts/pages.sh $(PAGES)

interop: ## The NVMe/TCP initiator, a store, and cairn target against a Linux kernel, on a machine under QEMU
	@scripts/setup.sh build interop
	$(CARGO) build --locked -p cairn-preload -p cairn-cli
	scripts/interop.sh

# The benchmark links a library that issues system calls by its own instructions. Catching these has
# a cost that a program without such calls does not pay.
bench: export CAIRN_RAW_CALLS = pass
bench: build ## Measure what docs/BENCHMARKS.md describes (ROW=write for that group only)
	@scripts/setup.sh bench
	$(CARGO) build --release --locked -p cairn-testing --bin cairn-bench
	$(if $(filter $(measured-alone),$(ROW)),,$(program) run --discard -- target/release/cairn-bench $(ROW))
	$(if $(filter $(measured-alone),$(ROW)),,\
		$(program) run --discard --tier file:$(CURDIR)/target/bench.tier:4G -- target/release/cairn-bench $(ROW))
	$(foreach row,$(filter-out small-pages,$(if $(ROW),$(filter $(ROW),$(measured-alone)),$(measured-alone))),\
		target/release/cairn-bench $(row) $(CURDIR)/target/bench.$(row) &&) true
	$(if $(filter small-pages,$(or $(ROW),small-pages)),$(foreach row,rotation fresh,\
		CAIRN_RUN_HUGE_PAGES=never target/release/cairn-bench $(row) $(CURDIR)/target/bench.$(row) &&)) true

# Rows that make their stores themselves. The first one: some of them with 4 KiB pages only, as in containers.
measured-alone = small-pages ranks rotation fresh foreign spill remote drain outside progress mounted

install: build ## Install the command, the libraries, cairn.h, manual pages and completions below PREFIX (/usr/local)
	install -D -m 755 $(program) $(root)/bin/cairn
	install -D -m 644 target/release/libcairn_preload.so $(root)/lib/libcairn_preload.so
	ln -sf libcairn_preload.so $(root)/lib/libcairn.so
	strip --strip-debug $(root)/bin/cairn $(root)/lib/libcairn_preload.so # target/release keeps the lines of backtraces
	install -m 644 target/release/libcairn.a $(root)/lib/libcairn.a
	install -D -m 644 include/cairn.h $(root)/include/cairn.h
	install -d $(root)/lib/pkgconfig
	@$(call package,cairn,libcairn.so,-lcairn) >$(root)/lib/pkgconfig/cairn.pc
	@$(call package,cairn-static,libcairn.a,$(wrapped) -l:libcairn.a) >$(root)/lib/pkgconfig/cairn-static.pc
	$(program) man --directory $(root)/share/man/man1
	install -d $(root)/share/bash-completion/completions
	$(program) completions bash >$(root)/share/bash-completion/completions/cairn

wrapped  = $(patsubst %,-Wl$(,)--wrap=%,$(file <crates/cairn-preload/wrapped.txt))
version  = $(word 2,$(shell $(program) --version))
,       := ,

# pkg-config file for one way to link: package NAME,FILE,FLAGS
define package
sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@NAME@|$(1)|' -e 's|@VERSION@|$(version)|' \
	-e 's|@DESCRIPTION@|Checkpoints at the speed of memory ($(2))|' -e 's|@LIBS@|$(3)|' scripts/cairn.pc.in
endef

clean: ## Remove what was built
	$(CARGO) clean
