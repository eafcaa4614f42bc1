# Measurements, the documentation's site, and what a release has.
.PHONY: bench cpu-report wheel test-wheel docs

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

# Measures everything that docs/results reports for a processor, on this machine. Takes hours, and 12 GB of disk for models with random
# weights.
cpu-report: $(VENV)/.installed $(VENV)/.samples build/tests/.built
	$(PYTHON) bench/cpu_report.py --python $(BIN)/python

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
