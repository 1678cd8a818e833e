# Two commands do everything: `make demo` and `make test`. Both set up `.venv` first, the latter the programs of tests too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Compiled modules are kept where the machine says not to: hundreds of processes of the suite start from them.
export PYTHONDONTWRITEBYTECODE =

.PHONY: setup demo test test-slow test-pretrained test-sglang lint bench docs clean

# The programs that tests need, at every call: the stamp knows nothing of the system. Takes no time when all are there.
setup: $(STAMP)
	@$(BIN)/python tests/needs.py

# torch first and alone: a CPU build, so that no later requirement pulls a CUDA one. Modules are compiled when they are
# first imported: most never are.
$(STAMP): pyproject.toml
	$(BIN)/python -m pip list -q >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install -q --upgrade pip setuptools
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q --no-compile torch==2.13.0
	$(BIN)/pip install -q --no-compile -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/agentrl demo

test: setup
	$(BIN)/python -m pytest -n 3 --no-loadscope-reorder -m "not slow"

# What takes too long for every change: a real model, each model family on every mesh, several machines.
test-slow: setup
	$(BIN)/python -m pytest -m "slow and not pretrained"

# A pre-trained model learns arithmetic in words: half an hour.
test-pretrained: setup
	$(BIN)/python -m pytest -m pretrained

# The engines' contract, live, on the SGLang of another environment: make test-sglang SGLANG=/opt/sglang (docs/engines.md).
# `make test-sglang VENV=/opt/sglang` means the same.
SGLANG ?= $(if $(filter-out .venv,$(VENV)),$(VENV))
test-sglang: BIN := .venv/bin
test-sglang:
	@test -n "$(SGLANG)" || { echo "name the environment that has SGLang: make test-sglang VENV=/opt/sglang"; exit 2; }
	@$(MAKE) --no-print-directory setup VENV=.venv
	$(SGLANG)/bin/python tests/wire/sglang_on_cpu.py
	AGENTRL_SGLANG_PYTHON=$(abspath $(SGLANG))/bin/python $(BIN)/python -m pytest -p no:xdist -m "not slow" -k sglang \
	  tests/inference/test_engine_contract.py tests/wire/test_recorded_engine.py tests/e2e/test_engines.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2

bench: $(STAMP)
	$(BIN)/agentrl demo --prepare
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/agent_loop.py
	$(BIN)/python benchmarks/train_step.py

docs: $(STAMP)
	$(BIN)/agentrl docs config --out docs/config_reference.md

clean:
	rm -rf $(VENV) outputs build dist *.egg-info
