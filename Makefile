# Every target sets up what it needs in .venv, with the versions of constraints.txt.
# Only interop has an environment of its own.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SPACE := search_spaces/pangu-ultra-moe-718b_atlas-800t-a2.toml
INTEROP := .venv-interop
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: search test slow interop lint format types bench fidelity claims size clean

search: $(VENV)/.ready  ## the main job: rank plans for Pangu Ultra MoE 718B
	$(BIN)/autodeploy search $(SPACE)

test: $(VENV)/.ready-dev  ## the default suite
	$(BIN)/pytest --numprocesses 2 --dist worksteal

slow: $(VENV)/.ready-dev  ## the tests that take minutes
	$(BIN)/pytest -m slow --numprocesses 2 || test $$? -eq 5

interop: $(INTEROP)/.ready  ## against PyTorch, transformers and Megatron-Core
	$(INTEROP)/bin/pytest -m interop -rs --capture=no tests/interop

lint: $(VENV)/.ready-dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready-dev  ## speed, as ratios in one run
	for bench in benchmarks/bench_*.py; do $(BIN)/python $$bench; done

fidelity: $(VENV)/.ready  ## fit the catalog's factors on published runs, predict all of them, write docs/accuracy.md
	$(BIN)/autodeploy calibrate --catalog
	$(BIN)/autodeploy validate --markdown --out docs/accuracy.md

claims: $(VENV)/.ready  ## published claims and ways of dispatch, write docs/claims.md and docs/dispatch.md
	$(BIN)/autodeploy claims --markdown --out docs/claims.md
	$(BIN)/autodeploy dispatch --markdown --out docs/dispatch.md

size: $(VENV)/.ready-dev  ## how long files and functions are
	$(BIN)/pytest -q -s tests/house/test_sizes.py

clean:
	rm -rf $(VENV) $(INTEROP) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PIP) --editable '.[dev]'
	touch $@

$(INTEROP)/.ready: pyproject.toml constraints.txt interop-constraints.txt
	$(PYTHON) -m venv $(INTEROP)
	$(INTEROP)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--constraint interop-constraints.txt --editable . \
		torch transformers megatron-core pytest hypothesis
	touch $@
