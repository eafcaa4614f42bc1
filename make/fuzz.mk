# Fuzzing (tests/README.md).
.PHONY: fuzz fuzz-corpus fuzz-coverage

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
