# Every target sets up what it needs by itself. PYTHON picks the interpreter, VENV the environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What is imported is compiled once and kept, whatever the environment says. pip would compile all there is, which
# takes longer than to fetch it.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
HOST_PORT ?= 8501
DEV_FILES := requirements.txt constraints.txt pyproject.toml tests/install_packages.py
# A test of a browser or of a process waits a third of its time, so that three workers keep two cores busy; with a
# fourth one none waits for the last file.
WORKERS = --workers $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores > 2 ? cores * 3 / 2 : 4)))

.DEFAULT_GOAL := help
.PHONY: help run test test-long check check-code check-tests debian-browser demo bench bench-peers ray-check faults gpu-check docs format clean

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.runtime: requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	$(BIN)/python -c "import torch._dynamo, harness.run, scipy.stats, streamlit.web.cli, harness.cli, dashboard.views"
	@touch $@

$(VENV)/.dev: $(DEV_FILES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tests/install_packages.py
	@touch $(VENV)/.runtime $@

# Debian's browser is fetched beside the packages; Playwright's own build is installed by one of them.
$(VENV)/.browser: $(DEV_FILES) tests/e2e/install_browser.py
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/.dev debian-browser
	$(BIN)/python tests/e2e/install_browser.py
	@touch $@

debian-browser:
	$(PYTHON) tests/e2e/install_browser.py --debian

run: $(VENV)/.runtime ## open Stepscope at http://localhost:8501
	$(BIN)/streamlit run dashboard/app.py --server.port $(HOST_PORT)

test: $(VENV)/.browser ## the test suite, browser included, in under ten minutes
	$(BIN)/python -m pytest -m "not gpu and not long" $(WORKERS) $(ARGS)

test-long: $(VENV)/.browser ## long runs and more random examples, which make test leaves out
	$(BIN)/python -m pytest -m "long and not gpu" $(WORKERS) $(ARGS)
	$(BIN)/python -m pytest --hypothesis-profile=thorough -m "not gpu" $(WORKERS) tests/property $(ARGS)

check: $(VENV)/.dev ## lint, types, layers, unit and property tests, side by side; under a minute
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-code check-tests

check-code:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

check-tests:
	$(BIN)/python -m pytest -q --workers $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores * 3 / 2))) --hypothesis-profile=quick -m "not gpu and not slow and not long and not browser" tests/unit tests/property tests/architecture $(ARGS)

demo: $(VENV)/.runtime ## write the simulated runs, to look around without a GPU
	$(BIN)/python -m harness demo

bench: $(VENV)/.browser ## what Stepscope costs, as ratios measured in one run
	$(BIN)/python -m tests.bench $(ARGS)

# Of its own, so that nothing here depends on them; torch and the workload are those of the other environment.
bench-peers: $(VENV)/.dev ## install what make bench compares the overhead with (trackio, TraceML, TensorBoard)
	$(BIN)/python -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r tests/bench/peers.txt
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  "$$(.venv-peers/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/stepscope.pth"

# Of its own, as that of bench-peers: Ray and what it needs take 380 MB. Compiled by pip: its raylet waits 15 s for
# an agent, which takes longer to start from source.
.venv-ray/.ready: $(VENV)/.dev tests/cluster/requirements.txt
	$(BIN)/python -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check -r tests/cluster/requirements.txt
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
	  "$$(.venv-ray/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/stepscope.pth"
	@touch $@

ray-check: .venv-ray/.ready ## runs over a Ray cluster of three nodes on this machine
	.venv-ray/bin/python -m pytest -m ray $(ARGS) tests/cluster

faults: $(VENV)/.dev ## what is promised when something fails, measured; writes docs/reliability.md
	$(BIN)/python -m tests.faults $(ARGS)

gpu-check: ## measure what needs a CUDA device, into docs/gpu (GPU_PYTHON: with torch for CUDA; GPU_OUT: a folder)
	$(or $(GPU_PYTHON),$(BIN)/python) -m tests.gpu.report $(ARGS)

docs: $(VENV)/.runtime ## write the generated pages anew
	$(BIN)/python -m harness.store.schema > docs/schema.md
	$(BIN)/python -m harness.settings.docs > docs/settings.md
	$(BIN)/python -m harness.catalog.docs > docs/models.md
	$(BIN)/python -m harness.analysis.advice.docs > docs/advice.md

format: $(VENV)/.dev ## put the code into shape
	$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

clean: ## remove the environment and caches
	rm -rf $(VENV) .venv-peers .venv-ray .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
