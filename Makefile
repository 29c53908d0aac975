# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test suite test-long lint bench cluster clean faults docs docs-tools

demo: $(STAMP)            ## train a tiny point tracker on synthetic videos, score it, draw it
	$(BIN)/overt demo

test: $(STAMP)            ## ruff, mypy, pytest, side by side
	$(MAKE) --jobs=2 lint suite

# Hundreds of processes import the same modules: their bytecode is kept, whatever the environment
# says. Three workers for two cores: some tests wait.
suite: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

test-long: $(STAMP)       ## what takes long or repeats what another test shows
	OVERT_LONG_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long -n 3 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

cluster: $(STAMP)         ## the tests on a real Slurm and on two network hosts; installs Slurm (root)
	python3 tests/cluster/slurm_cluster.py install
	OVERT_LONG_TESTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster

faults: $(STAMP)          ## hundreds of injected faults; writes their outcomes into docs/reliability.md
	PYTHONPATH=tests:tests/cluster OMP_NUM_THREADS=1 \
	  $(BIN)/python tests/faults/campaign.py --jobs $(or $(JOBS),1) --write docs/reliability.md

docs: docs-tools          ## the documentation as a site in site/; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/ is built; read it: $(BIN)/python -m http.server --directory site"

docs-tools: $(STAMP)      ## MkDocs Material and mkdocstrings
	$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'

bench: $(STAMP)           ## engine overhead and checkpoints, measured on this machine
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/overhead.py --fused
	$(BIN)/python benchmarks/checkpoint.py

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv runs build site *.egg-info
