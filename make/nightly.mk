# What is too long for CI, and runs once a night (.github/workflows/nightly.yml).
.PHONY: nightly

# Sanitizers, a minute of each fuzz target, each product file compiled alone, and builds for 64-bit ARM and macOS. Goes on after a part
# that fails, and fails at the end.
NIGHTLY := sanitize fuzz check-alone check-arm check-macos
nightly:
	@failed=; for part in $(NIGHTLY); do $(MAKE) $$part || failed="$$failed $$part"; done; \
	  if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi; echo "passed: $(NIGHTLY)"
