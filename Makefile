# Two commands: `make demo` and `make test`. Each makes its own .venv and installs what it needs.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: help demo test quick test-wide test-long archive rewritten spark-matrix connect check lint types layers ratchets docs site bench release clean

help:
	@echo "make demo       durable windows over real flights on Spark, killed twice and checked (STORE=parquet|memory|rocksdb)"
	@echo "make test       the tests"
	@echo "make quick      what one runs between two edits: no Spark, no kill, under two minutes"
	@echo "make test-wide  each of the long tests once, with few examples: 40 minutes"
	@echo "make test-long  the long forms of the slow tests"
	@echo "make spark-matrix  the tests of Spark on each Spark from 3.5 on (SPARKS='3.5.9 4.0.5' PYTHONS=3.12)"
	@echo "make connect    tests of Spark on Spark Connect: those of every CI run, or ARGS=tests/spark for all"
	@echo "make check      lint, types, layers, the docs checks and the site"
	@echo "make site       the documentation as a site, in build/site"
	@echo "make bench      every case against its peer, and memory (minutes)"
	@echo "make release    build and check what would be published, and print what to push; publishes nothing"
	@echo "make clean      remove .venv and build leftovers"

# Hundreds of tests start a process: each would compile the whole project where this is set, as images often have it.
export PYTHONDONTWRITEBYTECODE :=

STORE ?= parquet
# Processes: one has the session of Spark that tests share, the others start some of their own and wait for them.
JOBS ?= 3

demo: $(VENV)/installed-demo
	@$(PY) -m tools.demo --store $(STORE)

test: $(VENV)/installed-dev
	@echo "==> running the tests ($(JOBS) at a time, seven to thirteen minutes on two cores, by machine)"
	@$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

quick: $(VENV)/installed-dev
	@TIDESTATE_QUICK=1 $(PY) -m pytest -q -n $(JOBS) --dist worksteal -m "not spark and not kill and not slow" $(ARGS)

# What is left out of `make test` once, with as few examples: before a release, and after a change that reaches far.
test-wide: archive
	@TIDESTATE_WIDE=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: archive
	@TIDESTATE_LONG=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --timeout 0 $(ARGS)

# Spark's classes as loaded: its starts take two thirds of the time. To make this takes as long as a dozen starts save,
# so only what starts Spark more often does, and who wants it: `make archive`.
archive: $(VENV)/installed-dev
	-@$(PY) -m tools.class_archive

# pytest rewrites each test file once and keeps it: else each process does it, all at the same time, as the tests begin.
rewritten: $(VENV)/installed-dev
	@$(PY) -m pytest -qq --collect-only >/dev/null

spark-matrix: $(VENV)/installed-dev
	@$(PY) -m tools.spark_matrix $(if $(SPARKS),--sparks "$(SPARKS)") $(if $(PYTHONS),--pythons "$(PYTHONS)") $(if $(ONLY),--only "$(ONLY)") $(ARGS)

# A real server in a process of its own. The list has each kind of job once, some of the long form.
connect: $(VENV)/installed-dev
	@TIDESTATE_REMOTE=1 TIDESTATE_WIDE=1 $(PY) -m pytest -q -n 2 --dist worksteal $(if $(ARGS),$(ARGS),@tests/connect_in_ci.txt)

check: lint types layers ratchets docs site

lint: $(VENV)/installed-dev
	@echo "==> ruff: lint and format"
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: $(VENV)/installed-dev
	@echo "==> mypy: types, and how many are Any"
	@$(PY) -m tools.typecheck

layers: $(VENV)/installed-dev
	@echo "==> import-linter: layers"
	@$(VENV)/bin/lint-imports

ratchets: $(VENV)/installed-dev
	@echo "==> figures of the source, which only get better"
	@$(PY) -m tools.ratchets

docs: $(VENV)/installed-dev
	@echo "==> docs"
	@$(PY) -m pytest -q -n 0 tests/docs

site: $(VENV)/installed-dev
	@echo "==> mkdocs: the site, in build/site"
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

bench: $(VENV)/installed-dev
	@$(PY) -m tools.bench all
	@$(PY) -m tools.bench memory

# Not a part of the tests: it installs what the wheel asks for into an environment of its own.
release: $(VENV)/installed-release
	@$(PY) -m tools.release

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tidestate needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# It installs in a third of the time that pip takes.
$(VENV)/bin/uv: $(VENV)/bin/python
	@$(PY) -m pip install --quiet --no-compile --disable-pip-version-check 'uv>=0.9'

# pip knows indexes and certificates from settings of its own that uv does not read.
$(VENV)/installed-%: $(VENV)/bin/uv pyproject.toml
	@echo "==> installing tidestate[$*] and what it needs into $(VENV) (Spark and a JDK are 500 MB: a minute or two)"
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --editable '.[$*]' \
	  || $(PY) -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[$*]'
	@touch $@

clean:
	rm -rf $(VENV) .venvs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
