# make demo    the main job on an embedded control plane      make test   everything that CI runs
# make bench   the benchmark table                            make lint   style, types, layers
# make install the command alone, in .venv
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# A file at a time in one worker: fixtures of a module are made once. A worker more costs a collection and a cluster.
PYTEST_PARALLEL ?= --numprocesses 4 --dist loadfile --no-loadscope-reorder

# The tests start hundreds of headroom processes: none of them compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo install test test-fast lint bench bench-full compat observability soak simulate mutants build manifests image release lock clean

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/headroom demo

test: lint build
	$(BIN)/python --version
	$(BIN)/python -m pytest $(PYTEST_PARALLEL)

test-fast: lint
	$(BIN)/python -m pytest $(PYTEST_PARALLEL) -m "not cluster"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# deploy/*.yaml and the chart's README, from the chart.
manifests: build
	$(BIN)/python -m deploy.render

# An OCI archive in build/, without a container engine, and headroom from it (as root alone); needs Debian 12.
image: $(STAMP)
	$(BIN)/python -m deploy.image

# dist/: wheel, chart, image, kubectl plugin, SBOM, checksums. The same commit gives the same bytes. Needs Debian 12, as `make image`.
release: build
	test -x .venv/release/bin/cyclonedx-py || $(PYTHON) -m venv .venv/release
	.venv/release/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.lock
	$(BIN)/python -m deploy.release .venv/release/bin/cyclonedx-py

bench: build
	$(BIN)/python -m tests.bench

# Five rounds, 20,000 objects: what docs/dev/benchmarks.md shows is written by this.
bench-full: build
	$(BIN)/python -m tests.bench --full --write docs/dev/benchmarks.md

# Small changes to the modules that decide, the controllers, the webhook and kubeloop: how many do the tests notice that
# need no cluster? A few minutes to measure which test runs which line, then seconds each: `make mutants SAMPLE=400`,
# `make mutants MUTANTS="--areas kubeloop --seed 2"`. Versions that go together, and without what the project pins itself.
SAMPLE ?= 90
mutants: $(STAMP)
	test -d .venv/mutants/coverage || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --target .venv/mutants cosmic-ray==8.7.0 coverage==7.17.4 parso==0.8.7 stevedore==5.10.0
	PYTHONPATH=$(CURDIR):.venv/mutants nice $(BIN)/python -W ignore -m tests.mutants --sample $(SAMPLE) $(MUTANTS)

# 1,000 migrations for each thing that goes wrong (tests/bench/soak.py): `make soak SIZE=100` for a tenth, PART=etcd for one.
SIZE ?= 1000
soak: build
	$(BIN)/python -m tests.bench.soak $(SIZE) $(PART)
	HEADROOM_SOAK=1 $(BIN)/python -m pytest tests/e2e/test_admission_race.py tests/e2e/test_admission_reserve.py \
	  tests/e2e/test_admission_upkeep.py
	HEADROOM_ELECTION=real $(BIN)/python -m pytest tests/e2e/test_leader_election.py

# The end-to-end core on the oldest and the newest Kubernetes, each built the first time (ten minutes).
RELEASES ?= 1.30 1.37
compat: $(STAMP)
	for release in $(RELEASES); do \
	  $(BIN)/headroom testcluster build --kubernetes $$release && \
	  KUBELOOP_KUBERNETES=$$release $(BIN)/python -m pytest tests/e2e/test_migrations.py \
	    tests/e2e/test_admission_reserve.py tests/e2e/test_mtq.py tests/e2e/test_policy.py || exit 1; \
	done

# The whole stack in virtual time, from ever new seeds: for HOURS, or as many stories as SEEDS. `make simulate SEED=4711`
# tells one of them again and shortens it; WITHOUT="kill freeze" leaves actions out, PLANTED=clock plants a fault.
HOURS ?= 1
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS),--hours $(HOURS))) \
	  $(if $(PLANTED),--planted $(PLANTED)) $(if $(WITHOUT),--without $(WITHOUT))

# Prometheus itself, built the first time (ten minutes), on a real run: each alert on its fault, each panel has data.
observability: build
	HEADROOM_OBSERVABILITY=1 $(BIN)/python -m pytest tests/deploy/test_monitoring.py tests/monitoring \
	  tests/e2e/test_observability.py

build: $(STAMP)
	$(BIN)/headroom testcluster build

$(STAMP): requirements.lock setup.cfg lab/setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e ./lab
	touch $@

# The newest versions that setup.cfg allows, with hashes; the image's, at the same versions, without the tests' tools.
COMPILE := .venv/lock/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header
lock:
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	$(COMPILE) --extra test --output-file requirements.lock setup.cfg
	$(COMPILE) --no-annotate --constraint requirements.lock --output-file requirements-run.lock setup.cfg
	$(COMPILE) --no-annotate --output-file requirements-release.lock requirements-release.in
	rm -rf .venv/lock

clean:
	rm -rf .venv build dist *.egg-info
