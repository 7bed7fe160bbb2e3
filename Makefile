# What a newcomer and the checks run. Each target first makes .venv, unless it is there and up to date.

VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
# A process that has nothing left takes tests of the other: some take a minute, most a hundredth of a second.
PYTEST_OPTIONS ?= -n 2 --dist worksteal
KILLS ?= 100
SEED ?= 0
AREA ?= check
N ?= 30
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test check lint types layers conformance kills mutants bench readme docs install clean \
  mxnet-oracle mxnet-operators trainers

help:
	@echo "make demo         run two networks imperatively and as programs, and compare"
	@echo "make test         run the tests"
	@echo "make check        style, types, layers, then the tests: what CI runs"
	@echo "make conformance  compare every PyTorch operator's samples with eager PyTorch (long)"
	@echo "make kills        end processes of training runs at random, $(KILLS) times (long; SEED=1 for others)"
	@echo "make mutants      change single places of an area and see tests fail: AREA=check N=30 SEED=0 (long)"
	@echo "make bench        measure against eager PyTorch and other compilers (long)"
	@echo "make readme       measure the promises again, and put all figures into the READMEs"
	@echo "make mxnet-oracle install the real MXNet apart, and compute the fixtures of tests/mx anew"
	@echo "make trainers     train hybridized models in Hugging Face's Trainer, Lightning and accelerate"
	@echo "make docs         make the pages of docs/ into a site: build/docs/index.html"
	@echo "make clean        remove .venv and caches"

demo: $(INSTALLED)
	@$(PYTHON) examples/demo.py

# One thread an operator: the test processes already fill the cores.
test: $(INSTALLED)
	@OMP_NUM_THREADS=1 $(PYTHON) -m pytest $(PYTEST_OPTIONS)

# One after the other even under `make -j`, and the tests last: the closing line is theirs.
check: $(INSTALLED)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory layers
	@$(MAKE) --no-print-directory test

lint: $(INSTALLED)
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

types: $(INSTALLED)
	@$(PYTHON) -m mypy

layers: $(INSTALLED)
	@$(VENV)/bin/lint-imports

conformance: $(INSTALLED)
	@$(PYTHON) -m tests.conformance
	@$(PYTHON) -m tests.conformance values inplace gradients --contestant lazy --report docs/conformance-lazy.md

kills: $(INSTALLED)
	@$(PYTHON) -m tests.train.failing $(KILLS) both $(SEED)

mutants: $(INSTALLED)
	@OMP_NUM_THREADS=1 $(PYTHON) -m tests.mutants $(AREA) $(N) $(SEED)

bench: $(INSTALLED)
	@$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[dev,bench]'
	@$(PYTHON) bench/run.py
	@$(PYTHON) -m bench.devices lenet
	@$(PYTHON) -m bench.devices resnet18 60
	@$(PYTHON) -m bench.asynchronous
	@$(PYTHON) -m bench.unequal

readme: $(INSTALLED)
	@$(PYTHON) -m bench.readme

# The real MXNet 1.9.1, in an environment of its own: it needs Python 3.10 and an old NumPy.
ORACLE := build/mxnet-oracle
$(ORACLE)/bin/python:
	@old=$$(command -v python3.10 || ls $$HOME/.pyenv/versions/3.10*/bin/python 2>/dev/null | head -1); \
	if test -z "$$old" || ! $$old -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))' 2>/dev/null; then \
	  old=$$(ls $$HOME/.pyenv/versions/3.10*/bin/python 2>/dev/null | head -1); fi; \
	test -n "$$old" || { echo "the real MXNet 1.9.1 needs Python 3.10, which is not on this machine"; exit 1; }; \
	$$old -m venv $(ORACLE)
	@$(ORACLE)/bin/pip install --quiet "mxnet==1.9.1" "numpy==1.23.5"

mxnet-oracle: $(ORACLE)/bin/python
	@for file in tests/mx/oracle/*.py; do \
	  case $$file in */signatures.py) ;; *) $(ORACLE)/bin/python -W ignore $$file || exit 1;; esac; done

mxnet-operators: $(ORACLE)/bin/python $(INSTALLED)
	@$(ORACLE)/bin/python -W ignore tests/mx/oracle/signatures.py > src/weft/mx/operators/mxnet-1.9.1.txt
	@$(PYTHON) -m tests.mx.operator_page > docs/mx-operators.md

# In an environment of its own: the three bring many others.
OTHERS := build/trainers
trainers: $(INSTALLED)
	@test -x $(OTHERS)/bin/python || $(PYTHON) -m venv $(OTHERS)
	@$(OTHERS)/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]' transformers accelerate pytorch-lightning
	@$(OTHERS)/bin/python -m pytest -q -n 0 -W default -p no:randomly tests/train/test_other_trainers.py

docs: $(INSTALLED)
	@$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[dev,docs]'
	@$(PYTHON) -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "build/docs/index.html"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(PYTHON) || { \
	  for candidate in python3.11 python3.12 python3.13 python3 python3.10; do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then found=$$candidate; break; fi; \
	  done; \
	  test -n "$$found" || { echo "Weft needs Python 3.10 or newer: install python3.11, then run make again"; exit 1; }; \
	  echo "making $(VENV) with $$found: the first time this downloads PyTorch"; \
	  $$found -m venv $(VENV) || { rm -rf $(VENV); echo "$$found cannot make a venv: install its venv package"; exit 1; }; \
	}
	@$(PYTHON) -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
