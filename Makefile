# Every command of the project; each does all of its own set-up.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUN = $(VENV)/bin/python
STAMP = $(VENV)/.installed

.PHONY: setup test lint types imports simulate check demo drill clean

setup: $(STAMP)

$(STAMP): requirements.txt $(wildcard requirements/*.txt)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v == (3, 11) else f"Python 3.11 is needed, this is {v[0]}.{v[1]}: run make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --disable-pip-version-check -r requirements.txt -r requirements/dev.txt
	@touch $@

lint: setup
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .

types: setup
	$(RUN) -m mypy runtime fleet sla config manage.py

imports: setup
	$(VENV)/bin/lint-imports

test: setup
	$(RUN) -m pytest $(PYTEST_ARGS)

simulate: setup
	SIMULATIONS=$(or $(SIMULATIONS),3000) $(RUN) -m pytest tests/runtime/coordinator/test_faults.py --timeout 3600

check: lint types imports test

demo: setup
	@ONCE=$(ONCE) PORT=$(PORT) $(RUN) -m bench.demo

drill: setup
	$(RUN) -m runtime drill --ranks 4 --spares 2 --steps 60 --kill 1@15 --hang 2@30 --migrate 0@45

clean:
	rm -rf var .mypy_cache .ruff_cache .pytest_cache
