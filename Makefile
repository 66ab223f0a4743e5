# make demo    the main job on an embedded control plane      make test   everything that CI runs
# make bench   the benchmark table                            make lint   style, types, layers
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-fast lint bench build lock clean

demo: $(STAMP)
	$(BIN)/headroom demo

# The end-to-end tests share the machine with a whole control plane: what fails gets a second try, by itself.
test: lint build
	$(BIN)/python -m pytest || $(BIN)/python -m pytest --last-failed

test-fast: lint
	$(BIN)/python -m pytest -m "not cluster"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: build
	$(BIN)/python -m tests.bench

build: $(STAMP)
	$(BIN)/headroom testcluster build

$(STAMP): requirements.lock setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# The newest versions that setup.cfg allows, with hashes.
lock:
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	.venv/lock/bin/pip-compile --quiet --extra test --generate-hashes --allow-unsafe --strip-extras \
	  --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header --output-file requirements.lock setup.cfg
	rm -rf .venv/lock

clean:
	rm -rf .venv build dist *.egg-info
