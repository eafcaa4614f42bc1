# Style, types and lint, and compiling for other systems.
.PHONY: check check-python check-types check-format check-cpp check-arm check-alone build-report check-macos test-arm test-arm-install arm-tiles format

check: check-python check-types check-format check-cpp

check-python: $(VENV)/.checkers
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check $(PYTHON_CODE)

check-types: $(VENV)/.checkers
	$(BIN)/mypy

check-format: $(VENV)/.checkers
	$(BIN)/clang-format --dry-run --Werror $(CPP_CODE)

# Runs clang-tidy with the checks listed in .clang-tidy, on files of all processor families as for another family than this machine's: on
# x86-64, a file that takes x86-64 for granted fails. Takes 85 s of processor time.
check-cpp: $(VENV)/.checkers
	@./cmake/check_system.sh $(PYTHON) lint
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/lint -G Ninja -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(CMAKE_FLAGS) > /dev/null
	$(BIN)/python cmake/lint.py $(BIN)/clang-tidy build/lint

# Compiles each product file alone. A file that lacks an include fails here; all other builds compile the files of a library as one
# (CMakeLists.txt). Takes 10 minutes of processor time.
check-alone: $(VENV)/.made
	@./cmake/check_system.sh $(PYTHON)
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/alone -G Ninja -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(CMAKE_FLAGS) \
	  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_UNITY_BUILD=OFF > /dev/null
	$(BIN)/ninja -C build/alone --quiet _core

# Compiles the module from nothing, without ccache, and prints the processor seconds of each library, of the ten slowest files and of all.
build-report: $(VENV)/.made
	@./cmake/check_system.sh $(PYTHON)
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/python cmake/build_report.py build/report -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(CMAKE_FLAGS) -DSKBUILD_STATE=wheel

PYTHON_CODE := python tests examples bench cmake packaging docs
CPP_CODE := $(shell find cpp python shaders tests bench -name '*.cpp' -o -name '*.h')

format: $(VENV)/.checkers
	$(BIN)/ruff check --fix --select I $(PYTHON_CODE)
	$(BIN)/ruff format $(PYTHON_CODE)
	$(BIN)/clang-format -i $(CPP_CODE)

# Compiles all product files, and links the module, for 64-bit ARM. A file that takes x86-64 for granted fails here, on every machine. Takes
# 200 s of processor time, and a few seconds if ccache knows the files.
check-arm: $(VENV)/.made
	@./cmake/check_system.sh $(PYTHON) arm
	$(PIP) install -q -r tests/build-requirements.txt
	$(BIN)/cmake -S . -B build/arm -G Ninja -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) $(ARM_FLAGS) $(CMAKE_FLAGS) > /dev/null
	$(BIN)/ninja -C build/arm --quiet _core

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

MACOS_FLAGS = -DCMAKE_TOOLCHAIN_FILE=cmake/macos-zig.cmake -DPUMICE_ZIG=$$(echo $(CURDIR)/$(VENV)-macos/lib/python*/site-packages/ziglang/zig) \
              -DCMAKE_COMPILE_WARNING_AS_ERROR=ON
ARM_FLAGS = -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux.cmake -DPUMICE_BUILD_TESTS=ON
