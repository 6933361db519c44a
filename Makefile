# `make demo` and `make test` work on a fresh machine with Python 3.11+ and a package registry.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
SOAK_MINUTES ?= 60
SOAK_JOBS ?= 1
export OMP_NUM_THREADS := 1

.PHONY: setup demo test test-fast test-learning test-cluster chaos-cluster test-browser test-install attack exam verify history chaos fuzz audit hashes soak docs docs-serve test-docs lint format golden clean

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
	$(BIN)/pytest tests/runtime/cluster --ignore tests/runtime/cluster/test_chaos.py

chaos-cluster: setup  ## 30 kills over two runs of ten minutes on three simulated nodes; counted, with a table
	$(BIN)/pytest -s -m long tests/runtime/cluster/test_chaos.py

test-browser: setup  ## the report in Chromium; PACKTRAIN_AXE=node_modules/axe-core checks accessibility too
	$(BIN)/pytest tests/browser -rs

test-install: setup  ## build sdist and wheel, install them in a clean environment, and run the commands there
	.ci/test-install $(BIN)/python

attack: setup  ## every attack on files, disks, processes and environments, as a table
	$(BIN)/python tests/attack

exam: setup  ## every family on ten one-ability environments; writes the score card of the docs
	$(BIN)/packtrain exam --out runs/exam
	$(BIN)/python benchmarks/exam_docs.py runs/exam/exam.json

verify: setup  ## run the first updates of every published result again, and compare
	$(BIN)/packtrain verify --all

history: setup  ## measure this release's speed, and write docs/history.md; about five minutes on an idle machine
	$(BIN)/python benchmarks/history.py

chaos: setup  ## fault injection at full size: kills, bit flips, failing environments; about two hours
	$(BIN)/pytest -s -m long tests/cli/test_chaos.py

fuzz: setup  ## damaged run folders, configurations and converter inputs, for ten minutes
	PACKTRAIN_FUZZ=150 $(BIN)/pytest -s tests/test_fuzz.py

audit: setup  ## licences of all dependencies, and known vulnerabilities (pip-audit, needs the network)
	$(BIN)/python benchmarks/licences.py
	test -x build/audit/bin/pip-audit || $(PYTHON) -m venv build/audit
	-build/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python benchmarks/vulnerabilities.py build/audit/bin/pip-audit

hashes: setup  ## write constraints.hashed.txt, with INDEX=https://…/simple and WHEELS=FOLDER for files that are here
	$(BIN)/python benchmarks/hash_constraints.py $(INDEX) $(WHEELS)

soak: setup  ## each family for an hour: memory, rate, open files, threads; SOAK_MINUTES=20 SOAK_JOBS=2 for less time
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES) --jobs $(SOAK_JOBS)

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

test-docs: setup  ## run every command and snippet of the docs; an hour or more
	$(BIN)/python benchmarks/docs_commands.py

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache
