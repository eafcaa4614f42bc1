# Sanitizers (tests/README.md).
.PHONY: sanitize sanitize-cpp sanitize-python sanitize-cpp-threads sanitize-python-threads

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
