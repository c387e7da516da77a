# `make` alone lists the commands.
#   PYTHON=...  the Python for .venv, if you do not want the one chosen below
#   ARGS=...    passed to pytest, to `precede demo` and to the benchmarks, as in: make test-kernel ARGS="-k fifo"

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
DOCS_STAMP := $(VENV)/installed-docs
PYTEST = $(BIN)/python -m pytest
# Two at a time where tests compute. Tests with brokers and jobs mostly wait, so there a third one uses the cores that the
# others leave. What shares a Spark session, or what a file makes, keeps to one worker (tests/conftest.py).
BOTH_CORES = -n 2 --dist loadgroup
WORKERS = -n 3 --dist loadgroup --no-loadscope-reorder
CHECKED = precede bench examples deploy/release.py $(wildcard tests/*.py tests/*/*.py) # the links in precede/ lead to the other rooms

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup java demo demo-peers test test-nightly test-kernel test-mutations test-exhaustive test-hostile test-churn test-faults test-nights test-shard test-spark test-system test-segments test-cluster check style types rules format docs bench bench-peers soak dist release clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: java $(STAMP) ## Make .venv with pinned versions; again only when they change

demo: setup ## Run a broker, the stream and a lively group on this machine; ARGS="--seconds 20" makes it short
	@$(BIN)/precede demo $(ARGS)

demo-peers: setup ## Run peers on two segments of loopback, gateways and the log, and compare them; ARGS="--seconds 20" makes it short
	@$(BIN)/precede demo --peers $(ARGS)

test: setup ## Run all tests but those of a night, the fast ones first; ends with the slowest ten
	@$(PYTEST) $(WORKERS) --durations=10 tests $(ARGS)

test-nightly: setup ## Run the tests that `make test` leaves to a night: benchmarks, the wheel, stores and clusters
	@$(PYTEST) $(WORKERS) --durations=10 --nightly -m nightly tests $(ARGS)

test-kernel: $(STAMP) ## The ordering kernel alone: one or two minutes, no Java
	@$(PYTEST) $(BOTH_CORES) tests/kernel tests/scenarios $(ARGS)

test-mutations: $(STAMP) ## Break a copy of the kernel, one small thing at a time, and see whether its tests notice
	@$(BIN)/python -m tests.mutations $(ARGS)

test-churn: $(STAMP) ## Play groups whose members come and go, under every order: minutes, no Java; RUNS=500 makes it longer
	@PRECEDE_CHURN=$(or $(RUNS),100) $(PYTEST) tests/kernel/test_churn.py $(ARGS)

test-hostile: $(STAMP) ## Try to break kernel and segments, each with 200,000 cases of bytes, records, groups, datagrams: half an hour
	@$(BIN)/python -m tests.kernel.hostile $(ARGS)
	@PRECEDE_EXPLORE=1 $(PYTEST) tests/kernel/test_hostile_*.py tests/segments/test_hostile_socket.py

test-exhaustive: $(STAMP) ## Try every history of five messages, arrival order and cut, under every order: a quarter of an hour
	@$(BIN)/python -m tests.kernel.small_scope $(ARGS)

test-nights: setup ## Take the broker away for ten minutes, and see that nothing restarts
	@TEST_AWAY_S=600 $(BIN)/python -m pytest tests/system/test_bad_nights.py $(ARGS)

test-faults: setup ## Kill everything at every point of a batch, then count: long; ARGS="--seeds 1 open" plays some cases
	@$(BIN)/python -m tests.faults $(ARGS)

test-shard: $(STAMP) ## Test the function that Spark calls, with real state but no JVM: seconds
	@$(PYTEST) tests/shard $(ARGS)

test-spark: setup ## Test local Spark queries: minutes
	@$(PYTEST) tests/spark $(ARGS)

test-system: setup ## Test a real broker, the real stream and real Delta: minutes
	@$(PYTEST) $(WORKERS) tests/system $(ARGS)

test-cluster: setup ## Test files in stores and HDFS, and the job on standalone and YARN clusters: a quarter of an hour
	@$(PYTEST) tests/cluster --nightly $(ARGS)

test-segments: setup ## Play stories of peers and gateways on networks of their own, in every order but total: long; ARGS="--seeds 1 causal" plays one
	@$(BIN)/python -m tests.segments $(ARGS)

check: $(STAMP) style types rules ## Check style, types and house rules

style: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy $(CHECKED)

rules: $(STAMP)
	@$(PYTEST) -q tests/test_*.py

format: $(STAMP) ## Format the sources
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

docs: $(DOCS_STAMP) ## Build the site into build/site; a broken link or reference fails
	@rm -rf build/site
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs build/site
	@echo "The site is build/site/index.html."

bench: setup ## Compare with the plain ways of doing the same, as ratios; ARGS="beside COMMIT" compares with another commit
	@$(BIN)/python -m bench $(ARGS)

bench-peers: setup ## Compare with Kafka Streams and Flink on one broker, sequences checked; ARGS="--messages 200000" makes it short
	@$(BIN)/python -m bench.peers $(ARGS)

soak: setup ## Run for half an hour at 70 % of capacity, with loss, changing members and restarts; ARGS="--minutes 10" makes it short
	@$(BIN)/python -m bench.soak $(ARGS)

dist: setup ## Put the wheel, the bundle for spark-submit and the chart into dist/, and build the image where Docker or Podman runs
	@rm -rf dist build
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@$(BIN)/precede bundle dist/bundle
	@helm=$$(PATH="$(BIN):$$PATH" command -v helm) && "$$helm" package --destination dist deploy/chart >/dev/null || \
		echo "helm is not on this machine, so dist/ has no chart: install it and run this again." >&2
	@for builder in docker podman; do \
		if "$$builder" info >/dev/null 2>&1; then \
			"$$builder" build --tag "precede:$$($(BIN)/python -c 'import precede; print(precede.__version__)')" --file deploy/Dockerfile . && exit; \
			exit 1; \
		fi; \
	done; \
	echo "Neither Docker nor Podman runs on this machine, so there is no image: run this again where one does." >&2
	@ls -1 dist

release: setup ## Write the version, date the changelog, commit, tag and make dist/; VERSION=1.2.3, ARGS=--dry only shows it
	@$(BIN)/python deploy/release.py "$(VERSION)" $(ARGS)

clean: ## Remove .venv and caches; data (checkpoints, delta) stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each candidate is run, not only looked up: a name on PATH may be a shim for a version that is not there.
$(STAMP): pyproject.toml constraints.txt
	@set -e; found=; \
	enough='import ensurepip, sys, venv; raise SystemExit(sys.version_info < (3, 11))'; \
	if ! $(BIN)/python -c "$$enough" 2>/dev/null; then \
		for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
			if "$$python" -c "$$enough" 2>/dev/null; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "precede needs Python 3.11 or newer with its venv module: install it (for example: apt install python3 python3-venv) or say where it is: make PYTHON=/path/to/python3" >&2; \
			exit 1; \
		fi; \
		"$$found" -m venv --clear $(VENV); \
	fi; \
	echo "Installing the pinned versions into $(VENV) (once, about 1 GB on disk) ..."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' || { \
		echo "The packages could not be installed: see pip's message above; behind a mirror, set PIP_INDEX_URL." >&2; exit 1; }; \
	touch $@

$(DOCS_STAMP): $(STAMP)
	@echo "Installing what builds the site into $(VENV) (once, about 60 MB on disk) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]' || { \
		echo "The packages could not be installed: see pip's message above; behind a mirror, set PIP_INDEX_URL." >&2; exit 1; }
	@touch $@

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "precede needs Java 17 or newer: install it (for example: apt install openjdk-17-jre-headless) or set JAVA_HOME to where it is." >&2; \
		exit 1; \
	fi
