# Every target does its own set-up: on a fresh clone `make demo` or `make test` is all one types.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test test-elsewhere mutants check bench site wheel wheel-demo container-steps clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "e3bm needs Python 3.11 or newer; found " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install
	$(BIN)/e3bm demo --run runs/demo

# Tests start hundreds of processes: they read what is compiled, even where the environment says that nothing is written.
test test-elsewhere: export PYTHONDONTWRITEBYTECODE =

test: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# What another machine may do otherwise: kernels without vector instructions, older ones of oneDNN on two threads, and
# another order of tests that draw other numbers. Only what computes: `make test` has looked at the shapes of tensors
# and at tests marked `same_anywhere`, which none of these can change.
SENSITIVE := tests/core tests/methods tests/backbones tests/golden tests/runs/evaluation tests/contracts tests/fewshot
ELSEWHERE := E3BM_TEST_SHAPES=0 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations=3 \
	-m 'not slow and not same_anywhere' $(SENSITIVE)

test-elsewhere: install
	ATEN_CPU_CAPABILITY=default $(ELSEWHERE)
	ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive E3BM_TEST_THREADS=2 $(ELSEWHERE)
	E3BM_TEST_SEED=1 $(ELSEWHERE) --random-order --random-order-seed=1

# Small defects in a copy of the package, one after another: tests must notice (docs/reliability.md). Half an hour.
mutants: install
	$(BIN)/python scripts/mutants.py --workers $(WORKERS) --out results/mutants.json

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m benchmarks --out results/bench

# The documentation as pages with a search that works offline: open site/index.html.
site: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The steps of the Dockerfile in an empty environment, as far as a machine without Docker can take them.
container-steps: install
	$(BIN)/python scripts/container_steps.py

wheel: install
	rm -rf dist
	$(BIN)/python -m build --quiet --wheel

# What a user of the wheel gets: an empty environment outside the clone, and the demo in it.
wheel-demo: wheel
	set -e; place=$$(mktemp -d); wheel=$$(ls $(CURDIR)/dist/*.whl); constraints=$(CURDIR)/constraints.txt; \
	$(PYTHON) -m venv $$place/venv; cd $$place; \
	venv/bin/python -m pip install --quiet --disable-pip-version-check -c $$constraints $$wheel; \
	venv/bin/e3bm demo --size tiny --run $$place/demo; rm -rf $$place

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
