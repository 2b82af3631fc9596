# CI runs these targets too. `make help` lists them.

PREFIX ?= /usr
SYSCONFDIR ?= /etc
DESTDIR ?=
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Packaging and checking tools from crates.io, in the versions of scripts/deps.sh.
TOOLS := $(or $(CARGO_HOME),$(HOME)/.cargo)/nodelb-tools

export CARGO TARGET TOOLS
export PATH := $(TOOLS)/bin:$(PATH)

# The programs that tests and the demo start, with the features of the tests, so that nothing is compiled twice.
DEBUG_BUILD := $(CARGO) build --locked --workspace --bin nodelb --bin nodelb-prober --bin nodelb-apiserver --test properties

# libbpf is built by its own make, which must not use the install paths of nodelb.
MAKEOVERRIDES =
unexport PREFIX SYSCONFDIR DESTDIR

export PACKAGE_VERSION PREVIOUS

.DEFAULT_GOAL := help
.PHONY: help deps build test test-all test-unit lint fmt fuzz bench coverage regressions program-costs baseline growth soak demo install deb rpm package-test vm-test cluster cluster-down e2e handover day dist dist-check deny clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
	    printf '  make %-12s %s\n' "$$name" "$$text"; done

deps: ## install missing system packages (on Debian; elsewhere, list them; DEPS="deb vm": those of other targets, too)
	@scripts/deps.sh build programs run test lint fuzz $(DEPS)

build: ## build the daemon (release) and the other installed files
	@scripts/deps.sh build
	scripts/build.sh

test: ## run all rungs of tests except package and VM tests; some need root (uses sudo; a quarter of an hour on two processors, half of it for the build)
	@scripts/deps.sh build programs run test
	scripts/test.sh usual

test-all: test ## run make test, then the tests that take long, and those of the web page (uses sudo)
	@scripts/deps.sh page
	scripts/test.sh rest

test-unit: ## run the tests that need no root
	@scripts/deps.sh build programs
	scripts/test.sh unprivileged

lint: ## check formatting, clippy, shellcheck, units, file sizes, wording
	@scripts/deps.sh build programs lint
	scripts/lint.sh

fmt: ## format Rust and C code
	@scripts/deps.sh build lint
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml
	clang-format -i bpf/*.[ch]

fuzz: ## fuzz the Kubernetes decoder, translation, service files and the packet programs for a minute each (FUZZ_SECONDS=600: longer)
	@scripts/deps.sh build programs fuzz
	scripts/fuzz.sh $(or $(FUZZ_SECONDS),60)

bench: ## run the benchmarks and update docs/benchmarks.md (needs root; 15 minutes on an idle machine)
	@scripts/deps.sh build run bench
	scripts/bench.sh

coverage: ## print which lines of the packet programs the tests without root execute (LINES=1: which they do not)
	@scripts/deps.sh build programs
	scripts/coverage.sh $(if $(LINES),lines)

regressions: ## count instructions and allocations of the parts of nodelb; fails if one differs from benches/baseline.toml by 3 %
	@scripts/deps.sh build regressions
	scripts/bench.sh regressions

program-costs: ## compare the sizes of the BPF programs, and what packets cost, with benches/programs.toml (needs root)
	@scripts/deps.sh build run
	scripts/bench.sh program-costs

baseline: ## store the figures of regressions and of program-costs, and print what has changed (needs root)
	@scripts/deps.sh build run regressions
	scripts/bench.sh baseline

growth: ## show how the costs of the core grow from 1,000 to 100,000 services; fails if one is quadratic
	@scripts/deps.sh build
	scripts/bench.sh growth

soak: ## run an hour of traffic, changes and kills; updates docs/benchmarks.md (needs root; SOAK_MINUTES=10: shorter)
	@scripts/deps.sh build run
	scripts/bench.sh soak

demo: ## show load balancing, a replay of the outage and a client outside the node, in separate namespaces (needs root; half a minute after the build)
	@scripts/deps.sh build run
	$(DEBUG_BUILD)
	demo/run.sh $(TARGET)/debug

install: ## install the files of contrib/installed-files after make build; uses DESTDIR, PREFIX, SYSCONFDIR
	@test -x $(TARGET)/generated/nodelb || { echo "$(TARGET)/generated is empty; run make build first" >&2; exit 1; }
	PREFIX="$(PREFIX)" SYSCONFDIR="$(SYSCONFDIR)" DESTDIR="$(DESTDIR)" scripts/install.sh

deb: build ## build a Debian package in target/package/ (PACKAGE_VERSION=0.3.0: with another version)
	@scripts/deps.sh deb
	packaging/build.sh deb

rpm: build ## build an rpm in target/package/
	@scripts/deps.sh rpm
	packaging/build.sh rpm

package-test: deb rpm ## run lintian and rpmlint; install, upgrade, remove and purge the packages in clean trees (needs root; PREVIOUS="FILE...": upgrades from these, too)
	@scripts/deps.sh check
	packaging/test.sh

vm-test: $(if $(filter-out load,$(or $(RUNS),all)),deb) ## install, upgrade and purge the package, and take over from kube-proxy, in Debian 12 VMs with kernels 6.1 and 6.12 (needs root; RUNS=load: only load every variant of the programs)
	@scripts/deps.sh programs vm
	$(DEBUG_BUILD)
	tests/vm/run.sh

cluster: ## start three Kubernetes nodes in namespaces (K8S_BIN=FOLDER of their programs; LAYOUT=vxlan, PROXY=kube-proxy; needs root): tests/cluster/README.md
	@scripts/deps.sh build run cluster
	$(CARGO) build --locked -p nodelb-cluster -p nodelb-prober
	test -n "$${NODELB:-}" || $(MAKE) build
	tests/cluster/images.sh
	tests/cluster/cluster.sh up

cluster-down: ## end what make cluster has started
	tests/cluster/cluster.sh down

e2e: ## run upstream's network tests on the nodes of make cluster; updates docs/development/conformance.md (FOCUS="part of names": prints the results)
	tests/cluster/e2e.sh

handover: ## go from kube-proxy to nodelb and back on nodes of its own, under traffic; updates docs/development/handover.md (LAYOUTS="routes vxlan")
	@scripts/deps.sh build run cluster
	$(CARGO) build --locked -p nodelb-cluster -p nodelb-prober
	test -n "$${NODELB:-}" || $(MAKE) build
	tests/cluster/images.sh
	tests/cluster/handover.sh

day: ## run rolling updates, drains, kills and restarts for MINUTES=10 with nodelb, then with kube-proxy; updates docs/development/day.md
	@scripts/deps.sh build run cluster
	$(CARGO) build --locked -p nodelb-cluster -p nodelb-prober
	test -n "$${NODELB:-}" || $(MAKE) build
	tests/cluster/images.sh
	tests/cluster/day.sh $(or $(MINUTES),10)

dist: ## make a release of the last commit in target/dist/: source archive, .deb, .rpm, SBOM, SHA-256 sums
	@scripts/deps.sh build deb rpm dist
	scripts/dist.sh

dist-check: dist ## build the release again in another folder, and compare it with the first bit for bit
	scripts/dist.sh check

deny: ## check licences, sources and bans of all crates, and advisories if the database is reachable
	@scripts/deps.sh build deny
	scripts/deny.sh

clean: ## remove build output
	$(CARGO) clean
