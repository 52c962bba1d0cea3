# All tasks of development and CI. Requires Python 3.11 to 3.14 with venv and pip, and make; installs everything else.
# PYTHON selects an interpreter and VENV another environment: make test PYTHON=python3.13 VENV=.venv-3.13

UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
MANIFESTS := pyproject.toml uv.lock $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)
SOURCES := $(wildcard libs/*/src services/*/src)
# The directory of the tests' databases: in memory if it has 8 GB free, because a disk takes most of the tests' time.
MEMORY = $(shell grep -qE ' /dev/shm [^ ]+ [^ ]*noexec' /proc/mounts 2>/dev/null || \
	df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8000000 { print "/dev/shm" }')
# The number of test processes: make test WORKERS=2. Four keep two cores busy, because tests wait for processes and limits.
WORKERS := 4
PROJECT_VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
ENGINE := docker
IMAGE = mnemesh:$(PROJECT_VERSION)
empty :=
space := $(empty) $(empty)

# Use the environment of this directory, regardless of the caller's shell. Without cached bytecode, each process compiles
# its libraries again: a service takes a second longer to start.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
export UV_PYTHON := $(CURDIR)/$(BIN)/python
export UV_PYTHON_DOWNLOADS := never

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-polyglot check check-format check-types check-imports check-contracts check-deploy proto sync-client console bench bench-memory bench-memory-load bench-files up down fmt dist image version
.DELETE_ON_ERROR:

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

run: $(VENV)/.runtime ## Start the whole mesh and chat with a first agent
	@exec $(BIN)/mnemesh up --chat

up: $(VENV)/.runtime ## Start the mesh in the background
	@exec $(BIN)/mnemesh up --background

down: $(VENV)/.runtime ## Stop the mesh
	@exec $(BIN)/mnemesh down

test: $(VENV)/.dev ## Run the tests, with samples of the sweeps (ARGS="-k name" narrows it down)
	@TMPDIR="$${TMPDIR-$(MEMORY)}" $(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-all: $(VENV)/.dev ## Run the tests with more of each sweep and on every engine (ARGS=--sweep: with every point)
	@TMPDIR="$${TMPDIR-$(MEMORY)}" $(BIN)/pytest -n $(WORKERS) --dist worksteal --full $(ARGS)

test-polyglot: $(VENV)/.dev ## Build and run the examples in Go, Java, Python and TypeScript
	@TMPDIR="$${TMPDIR-$(MEMORY)}" $(BIN)/pytest -n 2 --full tests/polyglot $(ARGS)

check: check-format check-types check-imports check-contracts ## Format, lint, types, import rules, generated code, contracts
	@echo "mnemesh: all checks passed"

check-format: $(VENV)/.dev ## Format and lint
	@echo "mnemesh: format"
	@$(BIN)/ruff format --check .
	@echo "mnemesh: lint"
	@$(BIN)/ruff check .

check-types: $(VENV)/.dev ## Types
	@echo "mnemesh: types"
	@MYPYPATH=$(subst $(space),:,$(SOURCES)) $(BIN)/mypy $(filter-out libs/mnemesh-proto/src,$(SOURCES))

check-imports: $(VENV)/.dev ## Import rules
	@echo "mnemesh: import rules"
	@$(BIN)/lint-imports

check-contracts: $(VENV)/.dev ## Generated code, lint and compatibility of the contracts
	@echo "mnemesh: generated code"
	@$(BIN)/python scripts/generate_protos.py --check
	@$(BIN)/python scripts/generate_types.py --check
	@$(BIN)/python scripts/generate_sync_client.py --check
	@echo "mnemesh: contracts"
	@$(BIN)/buf lint
	@sh scripts/check_breaking.sh $(BIN)/buf

fmt: $(VENV)/.dev ## Format everything and apply automatic fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/buf format -w

proto: $(VENV)/.dev ## Generate the Python code of the contracts, and the twins of their messages
	@$(BIN)/python scripts/generate_protos.py
	@$(BIN)/python scripts/generate_types.py

sync-client: $(VENV)/.dev ## Generate the synchronous client from the asynchronous one
	@$(BIN)/python scripts/generate_sync_client.py

check-deploy: $(VENV)/.dev ## Validate the Helm chart, the compose files, alerts and dashboard (builds helm with Go if it is missing)
	@$(BIN)/pytest -q --full tests/deploy --ignore tests/deploy/test_mesh.py

console: $(VENV)/.dev ## Build the console, the web page of the gateway, from console/
	@$(BIN)/python scripts/build_console.py

bench: $(VENV)/.dev ## Measure turns of a mesh with a fake model
	@$(BIN)/python -m benchmarks $(ARGS)

bench-memory: $(VENV)/.dev ## Score memory on dialogues (ARGS="--dataset FILE")
	@$(BIN)/python -m benchmarks.memory $(ARGS)

bench-memory-load: $(VENV)/.dev ## Measure recall and archival with a million messages
	@$(BIN)/python -m benchmarks.memory_load $(ARGS)

bench-files: $(VENV)/.dev ## Measure uploads, processing, grep and views of files
	@$(BIN)/python -m benchmarks.files $(ARGS)

dist: $(VENV)/.uv-$(UV_VERSION) ## Build in dist/ the wheels of every package, `mnemesh`, which installs the whole mesh, and a bill of materials
	@rm -rf dist
	@$(BIN)/uv build --quiet --wheel --all-packages --out-dir dist
	@$(BIN)/uv build --quiet --wheel --out-dir dist
	@$(BIN)/uv export --quiet --frozen --no-dev --format cyclonedx1.5 --preview-features sbom-export -o dist/mnemesh.cdx.json
	@echo "mnemesh: pip install --find-links dist dist/mnemesh-*.whl"

image: ## Build the image of all services (ENGINE=podman, or buildah; IMAGE=registry/mnemesh:tag)
	@BUILDAH_FORMAT=docker $(ENGINE) build -f deploy/Dockerfile -t $(IMAGE) --build-arg VERSION=$(PROJECT_VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null) .

version: $(VENV)/.uv-$(UV_VERSION) ## Set the version of all packages and of the chart (VERSION=1.2.3)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/set_version.py $(VERSION)

# Dependencies of a running mesh. Keeps installed development tools.
$(VENV)/.runtime: $(MANIFESTS) | $(VENV)/.uv-$(UV_VERSION)
	@echo "mnemesh: installing the runtime dependencies"
	@$(BIN)/uv sync --quiet --frozen --no-dev --inexact
	@touch $@

# Dependencies of tests and checks.
$(VENV)/.dev: $(MANIFESTS) | $(VENV)/.uv-$(UV_VERSION)
	@echo "mnemesh: installing the development dependencies"
	@$(BIN)/uv sync --quiet --frozen --all-packages --all-groups
	@touch $(VENV)/.runtime $@

$(VENV)/.uv-$(UV_VERSION):
	@echo "mnemesh: creating $(VENV)"
	@sh scripts/make_venv.sh $(VENV)
	@echo "mnemesh: installing uv $(UV_VERSION)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet uv==$(UV_VERSION)
	@touch $@
