# Everything runs in .venv, which any target sets up on first use.
PYTHON ?= python3
# Pinned, so that a fresh machine gets the tested release (and, where one is served, the CPU build).
TORCH ?= torch==2.13.0
BIN := .venv/bin
# The two packages: torchcaps, and torchcaps-lab, which stands on it.
BOTH := --editable '.[dev]' --editable './lab[dev]'
# Processes that share the tests; one thread each.
JOBS ?= 2
# Many processes import the same: what they compile of Python is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-all thorough elsewhere cover lowest compile-test wheel release-check lint bench guide docs house clean

setup: .venv/.installed

# uv installs in a third of the time; where it reaches no packages, pip does.
.venv/.installed: pyproject.toml lab/pyproject.toml lab/setup.py
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile "$(TORCH)"
	($(BIN)/python -m pip install --quiet uv && $(BIN)/uv pip install --quiet --python $(BIN)/python $(BOTH)) \
		|| $(BIN)/python -m pip install --quiet --no-compile $(BOTH)
	touch $@

# Trains on the 1,797 embedded digits one at a time, then shows two digits in one image, beside a plain network.
# On one thread: two are a little faster, but beside other work they wait for each other, and take minutes.
demo: setup
	OMP_NUM_THREADS=1 $(BIN)/python examples/two_digits.py runs/demo-$$(date +%Y%m%d-%H%M%S)

test: setup
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal

# And what compiles, interprets kernels or differentiates twice; TORCHCAPS_SLOW=1 adds what takes minutes each.
test-all: setup
	$(BIN)/python -m pytest -m "" --numprocesses $(JOBS) --dist worksteal

# Of some folders of tests, only what make test leaves out; pytest ends with 5 where that is nothing.
thorough: setup
	$(BIN)/python -m pytest -m thorough --numprocesses $(JOBS) --dist worksteal $(FOLDERS) || [ $$? -eq 5 ]

# What may depend on the processor, as on others: with the oldest kernels of PyTorch on two threads, then without a compiler.
ELSEWHERE ?= tests/ops/test_agreement.py tests/routing/test_dynamic_routing.py tests/training/test_memory_of_a_training.py
elsewhere: setup
	TORCHCAPS_THREADS=2 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest $(ELSEWHERE)
	CXX= PATH=/nowhere $(abspath $(BIN))/python -m pytest $(filter tests tests/ops%,$(ELSEWHERE)) tests/ops/test_dispatcher.py

# All, with the lines that no test reaches.
cover: setup
	$(BIN)/python -m pytest -m "" --numprocesses $(JOBS) --dist worksteal --cov --cov-report term:skip-covered --cov-report html

# The lowest versions that pyproject.toml admits, but for torch, at what most depends on them. They warn of each other.
LOWEST := tests/test_cli.py tests/data tests/kinds/images tests/mixture tests/tasks tests/test_conversion.py tests/models/test_model_files.py \
	tests/kinds/texts/test_text_networks.py tests/report/test_report.py tests/explore/test_explorer.py \
	tests/recipes/test_recipe_jobs.py tests/recipes/test_recipes_of_poses.py
lowest: setup
	$(PYTHON) -m venv --clear .venv/lowest
	.venv/lowest/bin/python -m pip install --quiet --no-compile "$(TORCH)"
	$(BIN)/uv pip install --quiet --python .venv/lowest/bin/python --resolution lowest-direct "$(TORCH)" $(BOTH)
	.venv/lowest/bin/python -m pytest --override-ini filterwarnings=default --numprocesses $(JOBS) $(LOWEST)

# torch.compile in one piece on other releases of torch than the pinned one, each in an environment of its own that borrows
# the other packages. On Linux their wheels from PyPI bring gigabytes of CUDA; WHEELS may be an index of CPU builds.
COMPILED_ON := 2.10.0 2.11.0
WHEELS ?=
compile-test: setup
	for version in $(COMPILED_ON); do \
		$(PYTHON) -m venv .venv/torch-$$version && \
		.venv/torch-$$version/bin/python -m pip install --quiet --no-compile $(if $(WHEELS),--index-url $(WHEELS)) torch==$$version && \
		.venv/torch-$$version/bin/python -c "import site; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})'.replace('torch-$$version/', ''))" \
			> $$(.venv/torch-$$version/bin/python -c "import site; print(site.getsitepackages()[0])")/zz-others.pth && \
		.venv/torch-$$version/bin/python -m pytest -m "" -k "in_one_piece or inductor or other_batches" tests/ops/test_compiled_and_exported.py || exit 1; \
	done

# Into dist/: the sdist of torchcaps and the wheel made of it, with the C++ kernels for this kind of machine; the lab's wheel.
# Neither needs torch: what builds them has an environment of its own.
wheel:
	$(PYTHON) -m venv .venv/wheel
	.venv/wheel/bin/python -m pip install --quiet build
	.venv/wheel/bin/python -m build --outdir dist
	.venv/wheel/bin/python -m build --wheel --outdir dist lab

# Builds both wheels, installs them into an empty environment and uses them there: some minutes.
release-check: setup
	TORCH="$(TORCH)" $(BIN)/python -m tests.release_check

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks

# Runs the guide's chapters and draws their pictures anew.
guide: setup
	$(BIN)/python -m docs.guide

# Builds the site in build/site, offline and strictly: a broken link or reference fails, and a linked file that is missing.
docs: setup
	$(BIN)/python -m sphinx -W --keep-going -q -c docs/site . build/site
	@echo "build/site/index.html"

# Prints the size of every room, and writes the table of rooms and what torchcaps models lists.
house: setup
	$(BIN)/python -m docs.house
	$(BIN)/python -m tests.api_surface

clean:
	rm -rf .venv build dist htmlcov .coverage* *.egg-info lab/build lab/*.egg-info
