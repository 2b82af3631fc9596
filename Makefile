# What CI does, a person does with one target. `make help` lists them.

PREFIX ?= /usr
SYSCONFDIR ?= /etc
DESTDIR ?=
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Packaging and checking tools from crates.io, in the versions of scripts/deps.sh.
TOOLS := $(or $(CARGO_HOME),$(HOME)/.cargo)/nodelb-tools

export CARGO TARGET TOOLS
export PATH := $(TOOLS)/bin:$(PATH)

# libbpf is built by a make of its own, which must not install itself where nodelb goes.
MAKEOVERRIDES =
unexport PREFIX SYSCONFDIR DESTDIR

export PACKAGE_VERSION

.DEFAULT_GOAL := help
.PHONY: help deps build test test-unit lint fmt fuzz bench soak demo install deb rpm package-test vm-test deny clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
	    printf '  make %-12s %s\n' "$$name" "$$text"; done

deps: ## install the system packages that are missing (Debian; elsewhere it names them)
	@scripts/deps.sh build run test lint fuzz

build: ## the daemon, optimised: target/release/nodelb, and what is installed with it
	@scripts/deps.sh build
	$(CARGO) build --locked --release -p nodelb
	scripts/generate.sh $(TARGET)/generated

test: ## every rung of tests; packets and netns need root (sudo is used)
	@scripts/deps.sh build run test
	scripts/test.sh all

test-unit: ## the rungs that need no privilege
	@scripts/deps.sh build
	scripts/test.sh unprivileged

lint: ## formatting, clippy, shellcheck, units, budgets of size, the words of this project
	@scripts/deps.sh build lint
	scripts/lint.sh

fmt: ## put Rust and C into form
	@scripts/deps.sh build lint
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml
	clang-format -i bpf/*.[ch]

fuzz: ## feed the Kubernetes decoder and translation with anything, a minute each (FUZZ_SECONDS=600: longer)
	@scripts/deps.sh build fuzz
	scripts/fuzz.sh $(or $(FUZZ_SECONDS),60)

bench: ## measure, and write the figures into docs/benchmarks.md (needs root; ten minutes on a quiet machine)
	@scripts/deps.sh build run
	scripts/bench.sh

soak: ## an hour of traffic, changes and kills, for docs/benchmarks.md (needs root; SOAK_MINUTES=10: shorter)
	@scripts/deps.sh build run
	scripts/bench.sh soak

demo: ## watch connections being balanced and the outage replayed, in namespaces of its own (needs root; half a minute)
	@scripts/deps.sh build run
	$(CARGO) build --locked -p nodelb -p nodelb-prober -p nodelb-apiserver
	demo/run.sh $(TARGET)/debug

install: ## after make build: install the files of contrib/installed-files; knows DESTDIR, PREFIX, SYSCONFDIR
	@test -x $(TARGET)/generated/nodelb || { echo "Nothing is in $(TARGET)/generated: run make build first" >&2; exit 1; }
	PREFIX="$(PREFIX)" SYSCONFDIR="$(SYSCONFDIR)" DESTDIR="$(DESTDIR)" scripts/install.sh

deb: build ## a Debian package of the same files, in target/package/ (PACKAGE_VERSION=0.2.0: under another version)
	@scripts/deps.sh deb
	packaging/build.sh deb

rpm: build ## an rpm of the same files, in target/package/
	@scripts/deps.sh rpm
	packaging/build.sh rpm

package-test: deb rpm ## lintian, rpmlint; install, upgrade, remove and purge the packages in clean trees (needs root)
	@scripts/deps.sh check
	packaging/test.sh

vm-test: deb ## a node's life in Debian 12 under qemu, kernels 6.1 and 6.12: from install to purge (needs root)
	@scripts/deps.sh vm
	$(CARGO) build --locked -p nodelb-prober -p nodelb-apiserver
	tests/vm/run.sh

deny: ## licences, sources and bans of all crates; advisories where the database can be had
	@scripts/deps.sh build deny
	scripts/deny.sh

clean: ## remove what was built
	$(CARGO) clean
