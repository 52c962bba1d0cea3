# Everything a newcomer or a CI needs. Asks for Python 3.11 or 3.12 with venv and pip, and make; brings the rest itself.

UV_VERSION := 0.13.8
VENV := .venv
BIN := $(VENV)/bin
MANIFESTS := pyproject.toml uv.lock $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)
SOURCES := $(wildcard libs/*/src services/*/src)
# Where tests keep their databases, most of whose time on a disk is waiting for it: in memory, if there are 8 GB for that.
MEMORY = $(shell grep -qE ' /dev/shm [^ ]+ [^ ]*noexec' /proc/mounts 2>/dev/null || \
	df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 { print "/dev/shm" }')
empty :=
space := $(empty) $(empty)

# Everything happens in this folder's own environment, whatever the caller's shell is set up for.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
export UV_PYTHON := $(CURDIR)/$(BIN)/python
export UV_PYTHON_DOWNLOADS := never

.DEFAULT_GOAL := help
.PHONY: help run test check proto bench bench-tiers up down fmt
.DELETE_ON_ERROR:

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: $(VENV)/.runtime ## Start the whole mesh and talk to a first agent
	@exec $(BIN)/mnemesh up --chat

up: $(VENV)/.runtime ## Start the mesh in the background
	@exec $(BIN)/mnemesh up --background

down: $(VENV)/.runtime ## Stop it
	@exec $(BIN)/mnemesh down

test: $(VENV)/.dev ## Run every test (ARGS="-k name" narrows it down)
	@TMPDIR="$${TMPDIR-$(MEMORY)}" $(BIN)/pytest -n 2 $(ARGS)

check: $(VENV)/.dev ## Format, lint, types, import rules, generated code, contracts
	@echo "mnemesh: format"
	@$(BIN)/ruff format --check .
	@echo "mnemesh: lint"
	@$(BIN)/ruff check .
	@echo "mnemesh: types"
	@MYPYPATH=$(subst $(space),:,$(SOURCES)) $(BIN)/mypy $(filter-out libs/mnemesh-proto/src,$(SOURCES))
	@echo "mnemesh: import rules"
	@$(BIN)/lint-imports
	@echo "mnemesh: generated code"
	@$(BIN)/python scripts/generate_protos.py --check
	@echo "mnemesh: contracts"
	@$(BIN)/buf lint
	@sh scripts/check_breaking.sh $(BIN)/buf
	@echo "mnemesh: all checks passed"

fmt: $(VENV)/.dev ## Format everything, fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/buf format -w

proto: $(VENV)/.dev ## Generate the Python code of the contracts
	@$(BIN)/python scripts/generate_protos.py

bench: $(VENV)/.dev ## Measure a mesh with a fake model
	@$(BIN)/python -m benchmarks $(ARGS)

bench-tiers: $(VENV)/.dev ## Measure recall and archival at a million messages
	@$(BIN)/python -m benchmarks.tiers $(ARGS)

# What a running mesh needs. Leaves the development tools where they are.
$(VENV)/.runtime: $(MANIFESTS) | $(VENV)/.uv-$(UV_VERSION)
	@echo "mnemesh: installing what the mesh needs"
	@$(BIN)/uv sync --frozen --no-dev --inexact
	@touch $@

# What tests and checks need beside that.
$(VENV)/.dev: $(MANIFESTS) | $(VENV)/.uv-$(UV_VERSION)
	@echo "mnemesh: installing what the tests need"
	@$(BIN)/uv sync --frozen --all-packages --all-groups
	@touch $(VENV)/.runtime $@

$(VENV)/.uv-$(UV_VERSION):
	@echo "mnemesh: making $(VENV)"
	@sh scripts/make_venv.sh $(VENV)
	@echo "mnemesh: installing uv $(UV_VERSION)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet uv==$(UV_VERSION)
	@touch $@
