# make demo: install, fetch the data, compare the methods, write the report
# make test: lint, type-check, test
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test lint types unit kernels slow gpu fleet-test bench-check clean

demo: $(INSTALLED)
	$(BIN)/fedctta run demo --out runs/demo --resume

test: lint types unit kernels

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

unit: $(INSTALLED)
	$(BIN)/python -m pytest -n auto

# The kernels for GPUs, on a CPU by Triton's interpreter.
kernels: $(INSTALLED)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto -m triton

slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

# A fleet of real processes: the same result as the simulator, faults and attacks. About half an hour on two cores.
fleet-test: $(INSTALLED)
	$(BIN)/python -m pytest -m slow -s tests/fleet

gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m "gpu or triton"

# Which ratios of `fedctta bench` moved by more than 15 % since they were committed. About two minutes on a CPU.
bench-check: $(INSTALLED)
	$(BIN)/python benchmarks/bench_check.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
