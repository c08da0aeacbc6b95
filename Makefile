# `make demo` and `make test` set up everything that they need on a fresh machine.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
SEED ?= 1
# Fixes the order of tests and hypothesis' examples, so that a failure can be reproduced.
DRAWN = --randomly-seed=$(SEED) --hypothesis-seed=$(SEED)
SECONDS ?= 60
CASES ?= 1000
KILLS ?= 10
CUTS ?= 100
AWAY_S ?= 600
FAULTS ?= 10
ROUNDS ?= 1
COMMIT ?= c1e7744
CLIENTS ?= 100000
INTERVAL_S ?= 0
# Tests start hundreds of processes; without bytecode on disk each of them compiles all its modules.
unexport PYTHONDONTWRITEBYTECODE
SLOW := slow or kafka or java or clickhouse or spark or browser or dist or image or promtool
PROTO := telemetry/proto
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider -q
# What only a release needs, minutes of it; `make test-all` has it too.
EVERYDAY := and not release
# Ends with the name of the lane, whose failures pytest keeps there.
LANE = $(BIN)/python -m pytest -q $(DRAWN) -o cache_dir=build/failed
NO_TESTS := 5

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint check cover compiled test-compiled dist image kubernetes oracle chaos powerloss chaos-cluster chaos-brokers matrix matrix-platforms attack fuzz bench bench-against scale fleets truth chaos-jobs chaos-streams fmt lock proto docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

# What the demo runs; the tests add the rest to the same environment.
$(DEMO_READY): requirements-demo.txt pyproject.toml exporters/clickhouse/managed/write_guard.c
	@$(PYTHON) headroom/platforms.py $(NEEDS)
	@echo "setting up $(VENV), once: $$(sed -n 's/^# //p' requirements-demo.txt); then 'headroom demo' fetches Kafka's jars, 45 MB"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --require-hashes -r requirements-demo.txt
	@$(INSTALL) --no-build-isolation -e .
	@$(BIN)/python -m spark_jobs.session || echo "without the class archive of Spark's JVM jobs start slower"
	@touch $@

$(READY): $(DEMO_READY) requirements.txt
	@echo "adding the tools of the tests to $(VENV), once: $$(sed -n 's/^# //p' requirements.txt) with what the demo has"
	@$(INSTALL) --require-hashes -r requirements.txt
	@touch $@

setup: $(READY) ## virtual environment with the locked dependencies

demo: NEEDS := java
demo: $(DEMO_READY) ## real broker and throttled real clients; writes demo-output/; KEEP=1 keeps all running until Ctrl-C
	@$(BIN)/headroom demo $(if $(KEEP),--keep)

# First what compares itself with a broker under a light load, and mostly waits; in the time that it leaves the quick
# tests. Then the others, which start servers. What measures a real broker's time can fail because tests beside it take
# both cores: what fails in these two lanes runs once more, with nothing beside it, and the log has both results.
test-all: EVERYDAY :=
test: ## what a change can break, in a quarter of an hour, drawn by SEED=1: real broker, real clients, ClickHouse, Spark, a browser
test-all: ## make test and what a release needs: three brokers, minutes of JMX, the wheel, disasters, attacks, upgrades, commands of all pages
test test-all: $(READY)
	@tests/system_packages.sh
	@mkdir -p build; rm -rf build/failed; alone=0; quick=0; slow=0; \
	again() { echo "make $@: once more, one at a time, what failed beside others"; $(LANE)/$$1 --lf --lfnf=none -m "$$2" $(TESTS) || return 1; }; \
	nice -n 15 $(PYTEST) -n 2 --dist loadfile -m "not ($(SLOW)) $(EVERYDAY)" $(DRAWN) $(TESTS) > build/test-quick.log 2>&1 & beside=$$!; \
	trap 'kill $$beside 2>/dev/null || true' EXIT; \
	$(LANE)/alone -n 2 --dist loadfile -m "alone and not image $(EVERYDAY)" $(TESTS) || alone=$$?; \
	wait $$beside || quick=$$?; cat build/test-quick.log; \
	[ $$alone != 1 ] || { again alone "alone and not image $(EVERYDAY)" && alone=0; }; \
	for status in $$alone $$quick; do [ $$status = 0 ] || [ $$status = $(NO_TESTS) ] || exit $$status; done; \
	$(LANE)/slow -n 3 --dist loadgroup --no-loadscope-reorder -m "($(SLOW)) and not (alone or image) $(EVERYDAY)" $(TESTS) || slow=$$?; \
	[ $$slow != 1 ] || { again slow "($(SLOW)) and not (alone or image) $(EVERYDAY)" && slow=0; }; \
	[ $$slow = 0 ] || [ $$slow = $(NO_TESTS) -a $$(( alone * quick )) = 0 ]

lint: $(READY) ## format, lint, types (of the tests too), import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

check: lint ## lint, and the quick tests, four at a time: half of them wait
	@$(BIN)/python -m pytest -q -n 4 -m "not ($(SLOW))" $(DRAWN)

cover: $(READY) ## quick tests with line coverage; TESTS= for others, the page is build/coverage/index.html
	@$(BIN)/python -m pytest -q -m "not ($(SLOW))" $(DRAWN) $(TESTS) \
		--cov --cov-report=term:skip-covered --cov-report=html:build/coverage

compiled: $(READY) ## a copy of the packages with the hot modules compiled: build/compiled
	@$(BIN)/python hatch_build.py build/compiled

# Of the packages with compiled modules, and of the processes that run them.
COMPILED_TESTS := tests/telemetry tests/exporters tests/quota_metrics tests/headroom/server

test-compiled: compiled ## quick tests of the packages with compiled modules against the compiled copy; TESTS= for others
	@PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/pytest -p no:cacheprovider -q -n 2 -m "not ($(SLOW) or interpreted)" $(DRAWN) $(or $(TESTS),$(COMPILED_TESTS))

dist: $(READY) ## wheel (compiled) and sdist; dist/
	@rm -rf dist
	@HEADROOM_BUILD=$(or $(HEADROOM_BUILD),compiled) $(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist .
	@ls dist/*.whl dist/*.tar.gz

image: $(READY) ## build the image with buildah, start it, have a Java client push through it
	@$(BIN)/python -m pytest -p no:cacheprovider -q -m image tests/deploy/test_image.py

kubernetes: $(READY) ## as root: a real single-node Kubernetes on this machine, the chart in it, Spark jobs in it; AWAY_S=600 without the store, CHECKS= for some; one line per check
	@PYTHON=$(abspath $(BIN))/python AWAY_S=$(AWAY_S) tests/kubernetes/run.sh $(CHECKS)

scale: compiled ## CLIENTS=100000 client instances at their interval, INTERVAL_S=0: 3,333 pushes a second, at least 10 s; measured beside the plan
	@PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python -m tests.bench.scale $(CLIENTS) $(INTERVAL_S)

oracle: $(READY) ## differential tests against Kafka's own classes, SEED=1 CASES=1000
	@status=0; for subject in telemetry administration quotas client_files certificates; do \
		$(BIN)/python -m tests.oracle.$${subject}_oracle $(SEED) $(CASES) || status=1; done; exit $$status

chaos: $(READY) ## under load: SEED=1 KILLS=10 of processes, FAULTS=10 of the store; then clock steps, failing files, processes that stop for a minute
	@$(BIN)/python -m tests.chaos $(SEED) $(KILLS) $(FAULTS)

chaos-cluster: $(READY) ## SEED=1 KILLS=10 of the nodes of a ClickHouse cluster (2 shards of 2 replicas), in turn, each 10 s, under load; then two of them are slow
	@$(BIN)/python -m tests.chaos.cluster $(SEED) $(KILLS)

fleets: $(READY) ## CASES=2000 SEED=1: fleets drawn at random, every path of windows and levels against a reference second by second
	@$(BIN)/python -m tests.fleets $(CASES) $(SEED)

truth: $(READY) ## twenty minutes: scripted clients, three brokers, two gateways; are the right ones flagged, for the right reason
	@$(BIN)/python -m tests.truth

chaos-jobs: $(READY) ## SEED=1 KILLS=10 of the Spark job's driver, an executor and ClickHouse, in turn
	@$(BIN)/python -m tests.chaos.jobs $(SEED) $(KILLS)

chaos-streams: $(READY) ## SEED=1 KILLS=10 of quota-headroom --stream, while rows arrive late
	@$(BIN)/python -m tests.chaos.spark.streams $(SEED) $(KILLS)

chaos-brokers: $(READY) ## ROUNDS=1: each of three brokers restarted in turn, clients through the gateway beside direct ones
	@$(BIN)/python -m tests.chaos.brokers $(ROUNDS)

matrix: $(READY) ## brokers 2.8 to 4.3 with old and new clients, behind the gateway; writes the table of README.md
	@$(BIN)/python -m tests.matrix

matrix-platforms: $(READY) ## other people's ClickHouse (25.8 and 26.9, profiles, proxies) and releases of Spark; writes tables of docs/clickhouse.md and docs/spark-jobs.md
	@$(BIN)/python -m tests.matrix.platforms
	@$(BIN)/python -m tests.matrix.spark

powerloss: $(READY) ## SEED=1 SECONDS=60 CUTS=100 power losses under `fsync: each`, by replay of what strace saw
	@$(BIN)/python -m tests.powerloss $(SEED) $(SECONDS) $(CUTS)

attack: $(READY) ## hostile clients and pages against running services; then SECONDS=60 of 1,000 polite clients and three hostile ones, and of each of these alone
	@$(BIN)/python -m pytest -p no:cacheprovider -q tests/attack
	@$(BIN)/python -m tests.attack.fleet $(SECONDS)

fuzz: $(READY) ## hostile bytes in a child process, SEED=1 SECONDS=60
	@$(BIN)/python -m tests.fuzz $(SEED) $(SECONDS)

bench: compiled ## figures with their ratio to a baseline of the same run; build/bench.jsonl; SIZES= rows for the Spark job
	@$(BIN)/python -m tests.bench $(SIZES)

bench-against: compiled ## COMMIT=c1e7744 ROUNDS=1: figures of this tree beside those of a commit, alternated in one run
	@$(BIN)/python -m tests.bench.kit.against $(COMMIT) $(ROUNDS)

fmt: $(READY) ## format, and fix what ruff can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-annotate pyproject.toml
# Its first line: what a fresh checkout loads on this platform.
define SIZE
import sys
from pathlib import Path
lock, wheels = map(Path, sys.argv[1:])
size = sum(file.stat().st_size for file in wheels.iterdir())
lock.write_text(f"# {size / 1e6:,.0f} MB to load\n" + lock.read_text())
endef
export SIZE

lock: $(READY) ## compile requirements.txt, requirements-demo.txt and deploy/requirements*.txt (the images') anew from pyproject.toml
	@$(COMPILE) --extra dev -o requirements.txt
	@$(COMPILE) --extra checkout --constraint requirements.txt -o requirements-demo.txt
	@$(COMPILE) --extra embedded --extra spark --constraint requirements.txt -o deploy/requirements.txt
	@$(COMPILE) --constraint requirements.txt -o deploy/requirements-gateway.txt
	@for lock in requirements.txt requirements-demo.txt; do rm -rf build/wheels; \
		$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes -r $$lock -d build/wheels; \
		$(BIN)/python -c "$$SIZE" $$lock build/wheels; done; rm -rf build/wheels

docs: $(READY) ## write docs/settings.md, tables.md and metrics.md anew
	@$(BIN)/python -m tests.docs.reference_pages

# The last generator whose code does not refuse an older protobuf than its own.
PROTOC := $(BIN)/uv run --quiet --no-project --python $(BIN)/python --with grpcio-tools==1.62.3 --with 'setuptools<80' python -m grpc_tools.protoc

proto: $(READY) ## generate the Python code of the .proto anew
	@$(PROTOC) -I$(PROTO) --python_out=$(PROTO) --pyi_out=$(PROTO) headroom/telemetry/v1/telemetry.proto

clean: ## remove what the targets made
	rm -rf $(VENV) build dist demo-output .cache
