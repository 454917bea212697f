# One command for each task; each makes its environment itself. `make demo` and `make test` work on a fresh machine
# with Python 3.11 or newer, pip, gcc and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE := .engine
MODELS := .models
BENCH := .bench
LOCKED := $(VENV)/.locked
READY := $(VENV)/.ready
# The wheel as users get it, its hot path compiled, installed apart from the sources; what measures or endures runs on it.
BUILT := $(abspath $(VENV))/built
WHEEL := $(BUILT)/.ready
SHIPPED := LEEWAY_FORM=compiled PYTHONSAFEPATH=1 PYTHONPATH=$(BUILT)
# Suites beside each other: what needs no sockets while the wheel is built. Each says all that it has to say when it is over.
BESIDE := --jobs=2 --keep-going --no-print-directory
# What speaks to sockets waits a third of its time, so it is spread over the cores, file by file.
SPREAD := --numprocesses=logical --maxprocesses=4 --dist=loadfile
SOURCES := $(shell find gateway predictor backends -name '*.py' -o -name '*.pxd' -o -name '*.pyx' -o -name '*.toml')

.PHONY: demo demo-real test test-pure test-wire test-plain test-all check test-tools test-training engine test-engine bench-overhead bench-log bench-whatif bench-sidecar bench-tiers bench-prediction bench-tagger bench-live bench-slo bench-swaps bench-swap-times bench-simulator paper-multimodel own-lengths tagger-model soak paper-astrolabe paper-cascade bench-queues lock clean

$(LOCKED): requirements/dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements/dev.lock
	touch $(LOCKED)

# Builds the compiled modules beside their sources, so it runs again when one of those changes.
$(READY): $(LOCKED) pyproject.toml setup.py predictor/kernel.py predictor/kernel.pxd predictor/walk.py predictor/walk.pxd gateway/relay/straight.pyx
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $(READY)

$(WHEEL): $(READY) $(SOURCES)
	rm -rf $(BUILT)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --target $(BUILT) .
	touch $(WHEEL)

demo: $(READY)  ## a gateway and three simulated engines; prints its URLs and a curl line
	$(BIN)/gateway demo

demo-real: $(READY) engine  ## the same with vLLM on the CPU and a small real model
	$(BIN)/gateway demo --real --engine $(ENGINE) --models $(MODELS)

check: $(READY)  ## format, lint, types, import contracts, style
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest tests/style

test: $(READY)  ## everything that needs no other program; what speaks to sockets runs on the compiled wheel
	$(MAKE) $(BESIDE) test-pure test-wire

test-pure: $(READY)  ## what needs no sockets, and no clock either: it gives way to what does
	nice -n 5 $(BIN)/pytest tests/core tests/sim tests/style

test-wire: $(WHEEL)  ## what speaks to sockets, on the compiled wheel
	$(SHIPPED) $(BIN)/pytest $(SPREAD) -o pythonpath="$(BUILT) ." tests/wire

test-plain: $(READY)  ## the same on the plain modules, as a machine without a compiler has them
	$(BIN)/pytest $(SPREAD) tests/wire

test-all: $(READY)  ## all three
	$(MAKE) $(BESIDE) test-pure test-wire test-plain

test-tools: $(READY)  ## behind nginx and HAProxy, against slowhttptest and libfaketime (.ci/apt.txt)
	$(BIN)/pytest tests/tools

test-training: $(READY)  ## length trees trained as a user trains them, rows from parquet (lightgbm, scipy, pyarrow are added)
	$(BIN)/pip install --quiet -r requirements/eval.txt
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/training

engine:  ## vLLM for the CPU and its models, for test-engine and demo-real (2.2 GB)
	PYTHON=$(PYTHON) tests/engine/setup.sh $(ENGINE) $(MODELS)

test-engine: $(READY) engine  ## real vLLM on the CPU behind the gateway
	LEEWAY_ENGINE=$(abspath $(ENGINE)) LEEWAY_ENGINE_MODELS=$(abspath $(MODELS)) $(BIN)/pytest tests/engine

bench-overhead: $(WHEEL)  ## CPU, memory, first event beside nginx, HAProxy and three Rust routers (7 rounds, 20 minutes)
	PYTHON=$(PYTHON) tests/bench/setup.sh $(BENCH)
	$(SHIPPED):$(CURDIR) $(BIN)/python -m tests.bench.overhead --home $(BENCH) $(BENCH_ARGS)

bench-log: $(READY)  ## what an access line costs, rendered by structlog's chain and directly
	$(BIN)/python -m tests.bench.log_line

bench-queues: $(WHEEL)  ## what deciding anew about 1,000 waiting requests costs, plain and compiled
	first=$$($(BIN)/python -m tests.bench.queues) && $(SHIPPED):$(CURDIR) $(BIN)/python -m tests.bench.queues --beside "$$first"

bench-whatif: $(READY)  ## what a what-if costs, compiled and interpreted, at 48 running and 50 waiting
	$(BIN)/python -m tests.bench.whatif $(BENCH_ARGS)

bench-simulator: $(READY)  ## what a simulated run of 12 engines and 10,000 requests costs under each policy (1 minute)
	$(BIN)/python -m tests.bench.simulator $(BENCH_ARGS)

bench-sidecar: $(WHEEL)  ## a sidecar at 500 probes a second beside a null echo; what publishing, asking and a whole request cost
	PYTHON=$(PYTHON) tests/bench/setup.sh $(BENCH)
	first=$$($(BIN)/python -m tests.bench.sidecar $(BENCH_ARGS)) && \
	$(SHIPPED):$(CURDIR) $(BIN)/python -m tests.bench.sidecar_request --home $(BENCH) --merge "$$first" $(BENCH_ARGS)

bench-tiers: $(READY)  ## what budgets inside the engine cost a step, at 64 waiting and 16 running requests
	$(BIN)/python -m tests.bench.tiers $(BENCH_ARGS)

bench-prediction: $(READY) engine  ## how well a live engine's next requests are foretold (vLLM on the CPU, 7 minutes)
	LEEWAY_ENGINE=$(abspath $(ENGINE)) LEEWAY_ENGINE_MODELS=$(abspath $(MODELS)) $(BIN)/python -m tests.bench.prediction $(BENCH_ARGS)

bench-tagger: $(WHEEL)  ## what predicting a length costs, and whether it answers in time; a quiet machine (2 minutes)
	$(SHIPPED):$(CURDIR) $(BIN)/python -m tests.bench.tagger $(BENCH_ARGS)

bench-live: $(WHEEL)  ## beside real routers in front of eight simulated replicas, open loop (75 minutes; BENCH_ARGS=--quick: 2)
	PYTHON=$(PYTHON) tests/bench/setup.sh $(BENCH) aiperf
	$(SHIPPED):$(CURDIR) $(BIN)/python -m tests.bench.live --home $(BENCH) $(BENCH_ARGS)

bench-swaps: $(READY)  ## what one plan of swaps costs at 8 devices and 50 models
	$(BIN)/python -m tests.bench.swap_plan

bench-swap-times: $(READY) engine  ## how long models of three sizes take to load, two foretell the third (vLLM on the CPU, 6 GB of disk; 15 minutes)
	LEEWAY_ENGINE=$(abspath $(ENGINE)) LEEWAY_ENGINE_MODELS=$(abspath $(MODELS)) nice -n 10 $(BIN)/python -m tests.bench.swap_times $(BENCH_ARGS)

own-lengths: $(READY) engine  ## own length data: vLLM on the CPU answers 1,000 prompts twice (LEEWAY_DATA; 40 minutes, can be stopped)
	$(BIN)/python examples/lengths/own_lengths.py --engine $(ENGINE) --models $(MODELS) $(LENGTHS_ARGS)

tagger-model:  ## the length encoder that comes with the gateway, from LEEWAY_DATA and TEACHER (extra `train`; 6 minutes of one core)
	$(PYTHON) -m gateway tagger train $(LEEWAY_DATA) --out .tagger --epochs 3 --threads 1 $(if $(TEACHER),--teacher $(TEACHER)) $(TAGGER_ARGS)
	$(PYTHON) -m gateway tagger export .tagger --out predictor/tagger_models

eval-length: $(READY)  ## how well lengths are foretold, beside every baseline (LEEWAY_DATA; 40 minutes; EVAL_ARGS=--quick: 2)
	$(BIN)/pip install --quiet -r requirements/eval.txt
	OMP_NUM_THREADS=1 nice -n 10 $(BIN)/python -m tests.bench.lengths $(EVAL_ARGS)

bench-slo: $(WHEEL)  ## promises kept at 80, 100, 120 % of capacity, beside vllm-router and smg (60 minutes; BENCH_ARGS=--quick: 3)
	PYTHON=$(PYTHON) tests/bench/setup.sh $(BENCH)
	$(SHIPPED):$(CURDIR) $(BIN)/python -m tests.bench.slo --home $(BENCH) $(BENCH_ARGS)

soak: $(WHEEL)  ## 100,000 requests with a fault always on
	$(SHIPPED) $(BIN)/python tests/faults/soak.py $(SOAK_ARGS)

paper-astrolabe: $(READY)  ## the Astrolabe paper's experiments and ours in simulation; kept results are used again (hours at first)
	$(BIN)/python examples/papers/astrolabe/astrolabe_run.py $(PAPER_ARGS)

paper-cascade: $(READY)  ## CASCADE's experiments and ours in simulation (LEEWAY_DATA: the traces); kept results are used again
	$(BIN)/python examples/papers/cascade/cascade_run.py $(PAPER_ARGS)

paper-multimodel: $(READY)  ## many models on few GPUs: swap costs, offloading, schedulers in simulation (minutes)
	$(BIN)/python examples/papers/multimodel/run.py $(PAPER_ARGS)

lock: $(READY)  ## renew the pinned versions
	$(BIN)/pip install --quiet uv==0.13.9
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 pyproject.toml -o requirements/base.lock
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --extra dev pyproject.toml -o requirements/dev.lock

clean:
	rm -rf $(VENV) $(ENGINE) $(MODELS) $(BENCH) build predictor/*.so
