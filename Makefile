# Every target first makes sure that the environment in .venv is complete; finished work is never repeated.
#
#   make train                                the example: PPO learns to push a cube, with a report and videos
#   make train RECIPE=gym_cartpole_ppo_mlp TRAIN_ARGS="seed=3"
#   make test TEST_ARGS="tests/system -k doctor"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first of these that is a Python 3.11 or 3.12; when none is, bootstrap.py explains with what `python3` is.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for candidate in python3 python3.11 python3.12; do \
	"$$candidate" -c '$(SUPPORTED)' 2>/dev/null && echo "$$candidate" && exit; done; echo python3)

BIN := .venv/bin
RECIPE ?= maniskill_pushcube_ppo_mlp
TRAIN_ARGS ?=
TEST_ARGS ?=
BENCH ?= $(wildcard benchmarks/[!_]*.py)

# Cores are few and shared by simulator processes: threads inside each of them only get in each other's way.
export OMP_NUM_THREADS ?= 1
export PYTHONUNBUFFERED := 1

# Whole files of tests at a time, on at most four cores: a file's tests share what is slow to start. PARALLEL= runs one.
PARALLEL ?= -n logical --maxprocesses 4 --dist loadfile

WITHOUT_GPU := $(if $(shell command -v nvidia-smi),, and not gpu)

.PHONY: help setup train train-math test test-all lint bench docs wheel clean browser

help:
	@echo "make setup      create .venv, install everything, bring the libraries for rendering"
	@echo "make train      train the example (RECIPE=..., TRAIN_ARGS=\"key=value ...\")"
	@echo "make train-math train a small language model on sums, which ships half-taught (TRAIN_ARGS=...)"
	@echo "make test       style, import rules and the tests that take under ten minutes (TEST_ARGS=...)"
	@echo "make test-all   the same with the slow tests"
	@echo "make lint       style and import rules only"
	@echo "make bench      measurements against peers (BENCH=benchmarks/FILE.py for one)"
	@echo "make docs       check the documentation: its links and commands"
	@echo "make wheel      build dist/*.whl"
	@echo "make clean      remove what was built and cached; keeps .venv and runs/"

setup:
	@command -v "$(PYTHON)" >/dev/null || { echo "[setup] there is no Python here: install Python 3.11 or 3.12" \
		"(Debian 12: apt-get install python3 python3-venv)" >&2; exit 1; }
	@"$(PYTHON)" -I embodied/system/bootstrap.py

train: setup
	$(BIN)/embodied train $(RECIPE) $(TRAIN_ARGS)
ifeq ($(RECIPE),maniskill_pushcube_ppo_mlp)
	@echo "  $(BIN)/embodied train maniskill_ppo_openvla_oft_tiny    # a vision-language-action policy learns it from pictures"
endif

train-math: setup
	$(BIN)/reasoning train math_grpo_tiny $(TRAIN_ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

test: lint browser
	$(BIN)/pytest $(PARALLEL) -m "(not slow or sample)$(WITHOUT_GPU)" $(TEST_ARGS)

test-all: lint browser
	$(BIN)/pytest $(PARALLEL) $(if $(WITHOUT_GPU),-m "not gpu") $(TEST_ARGS)

# The report's pages are tested in a browser; without one those tests are skipped.
browser: setup
	@$(BIN)/python -m envs.rendering.install --browser

bench: setup
	@for file in $(BENCH); do echo "== $$file"; $(BIN)/python "$$file"; done

docs: setup
	$(BIN)/pytest -q tests/packaging/test_documentation.py

wheel: setup
	$(BIN)/python -m build --wheel

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./.venv -prune -o -path ./runs -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
