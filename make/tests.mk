# Tests that `make test` leaves out, because they take long, or need packages or devices of their own.
.PHONY: test-serve-long test-torch test-clients test-page test-vulkan-all test-storm soak test-old-cpus test-kills test-runs test-faults test-suites test-suites-others test-stores test-recipes test-ray fuzz-grammars

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
# generations, 9,000 loads, 9,000 more with texts, and 200,000 mixed calls. It also asserts wall times (tests/README.md, "Time in tests"), so
# nothing else may run on the machine. Takes about 6 hours on two cores; SOAK=0.01 does a hundredth of each.
SOAK ?= 1
times = $(shell $(PYTHON) -c "print(max(1, int($(SOAK) * $(1))))")
soak: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools build/tests/.built
	$(BIN)/python tests/python/support/abuse.py --calls $(call times,1000000) --seed 7
	$(BIN)/python tests/python/support/endings.py --processes $(call times,10000) --seed 7
	$(BIN)/python tests/python/support/soak.py --what sentences --calls $(call times,10000)
	$(BIN)/python tests/python/support/soak.py --what generate --calls $(call times,100000)
	$(BIN)/python tests/python/support/soak.py --what load --calls $(call times,9000)
	$(BIN)/python tests/python/support/soak.py --what texts --calls $(call times,9000)
	$(BIN)/python tests/python/support/soak.py --what mixed --calls $(call times,200000)
	$(BIN)/python tests/python/support/soak.py --what vulkan --calls $(call times,1000)
	PUMICE_TEST_WALLS=1 PUMICE_TEST_POINTS=$(call times,2000) $(BIN)/python -m pytest tests/python/callers/test_interrupt.py \
	  tests/python/callers/test_aload.py tests/python/callers/test_async.py -s
	PUMICE_TEST_WALLS=1 build/tests/tests/cpp/test_cpu --gtest_filter=Team.*:Backend.Cancel*
	PUMICE_TEST_WALLS=1 build/tests/tests/cpp/test_vulkan --gtest_filter=Submissions.*:Waiting.*
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

# Kills `pumice run` with SIGKILL, LINES lines in and KILLS times at random moments, and compares its answers with those of a run that was not
# killed. `make test` runs a short form, and cuts a file of answers at many places. Takes some minutes.
LINES ?= 2000
KILLS ?= 20
test-runs: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	$(BIN)/python tests/serve/kills.py --lines $(LINES) --kills $(KILLS)

# Makes every allocation of the C++ module, every read and every write of a file fail in turn, in Python (tests/python/machine), and breaks
# each value and tensor of every family's files. Takes about an hour. `make test` tries a sample of them, and `make sanitize` has the
# allocations of the engine in C++.
test-faults: $(VENV)/.installed $(VENV)/.samples $(VENV)/.tools
	PUMICE_TEST_ALL=1 $(BIN)/python -m pytest tests/python/machine/test_file_faults.py tests/python/machine/test_allocation_faults.py \
	  tests/python/families/test_broken_families.py -s

# Runs the examples of examples/stores, where DuckDB, LanceDB and sqlite-vec must find the neighbours that numpy finds. What they need is
# installed into a virtual environment of their own, with pumice.
test-stores: $(VENV)-stores/.installed
	$(VENV)-stores/bin/python -m pytest tests/python/scale/test_stores.py

# Runs the recipes of examples/recipes with the packages that they are for: in this process, over a server in a thread of it, and, for MCP,
# beside a server of its own. The packages take 0.7 GB and are installed into a virtual environment of their own, with pumice.
test-recipes: $(VENV)-recipes/.installed
	$(VENV)-recipes/bin/python -m pytest tests/python/scale/test_recipes.py

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

# Runs test suites of other projects against `pumice serve` with the sample models (docs/clients.md): LangChain's standard tests, those of
# the packages openai and anthropic, and llama.cpp's and vLLM's tests of their servers, unchanged, out of the sdists on PyPI. Each has an
# environment of its own in .venv-suites-others. Takes an hour of two processors; run.py --only NAME runs one of them.
test-suites-others: $(VENV)/.installed $(VENV)/.samples
	$(BIN)/python tests/suites_of_others/run.py --venvs $(VENV)-suites-others
