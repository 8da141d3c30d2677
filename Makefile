# Everything happens in .venv. Targets: demo test lint typecheck prove audit fuzz capacity progress transfers clean.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SECONDS_TO_FUZZ ?= 60
# The first Python from 3.11 to 3.13; override with `make PYTHON=...`.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; exit; }; done)

.PHONY: demo test lint typecheck prove audit fuzz capacity progress transfers clean

demo: $(STAMP)
	$(BIN)/kvproof demo

test: lint typecheck
	$(BIN)/pytest -q

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(STAMP)
	scripts/typecheck.sh $(BIN)/mypy

prove: $(STAMP)
	$(BIN)/kvproof prove --jobs $(JOBS)

audit: $(STAMP)
	$(BIN)/kvproof audit

fuzz: $(STAMP)
	$(BIN)/kvproof fuzz --seconds $(SECONDS_TO_FUZZ)

capacity: $(STAMP)
	$(BIN)/python -m kvproof.fuzz.capacity --workloads 200

progress: $(STAMP)
	$(BIN)/python -m kvproof.fuzz.progress --workloads 1000

transfers: $(STAMP)
	$(BIN)/python -m kvproof.fuzz.transfers --plans 10000

# Installed again only when the packaging changes.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "kvproof needs Python 3.11, 3.12 or 3.13; say which with make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
