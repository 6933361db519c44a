# `make demo` and `make test` work on a fresh machine with Python 3.11+ and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
export OMP_NUM_THREADS := 1

.PHONY: setup demo test test-fast test-learning test-cluster test-browser attack docs docs-serve lint format golden clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup  ## train a small agent, evaluate it, write its page
	$(BIN)/packtrain train impala/catch --output_dir $(RUN)
	$(BIN)/packtrain eval $(RUN)
	@echo "the page with its curve: $$($(BIN)/packtrain report $(RUN))"

test: setup  ## all tests but the long learning runs; those of pages where Chromium is installed
	$(BIN)/pytest -n 2 --dist loadgroup -m "not long"

test-fast: setup  ## under two minutes
	$(BIN)/pytest -n 2 -m "not slow and not learning and not long and not browser"

test-learning: setup  ## every learning test, three seeds each, CartPole and the point mass
	$(BIN)/pytest -n 2 -m "learning"

test-cluster: setup  ## every test of the cluster runtime, the long ones too, on three simulated nodes
	$(BIN)/pytest tests/runtime/cluster

test-browser: setup  ## the report in Chromium; PACKTRAIN_AXE=node_modules/axe-core checks accessibility too
	$(BIN)/pytest tests/browser -rs

attack: setup  ## every attack on files, disks, processes and environments, as a table
	$(BIN)/python tests/attack

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: setup  ## write the golden files anew: command line, composed configurations, walk, digests of first updates
	PACKTRAIN_GOLDEN=write $(BIN)/pytest tests/cli/test_golden.py tests/test_config_parts.py tests/test_walk.py tests/test_golden_digests.py

docs: setup  ## the documentation as a site in site/; strict: a broken link is an error
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: docs  ## the site on loopback
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache
