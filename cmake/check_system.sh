#!/bin/sh
# Checks for the system packages that a build needs. If some are missing, root installs them, and any other user gets one sentence that says
# which are missing and how to get them. Prints nothing if none is missing.
# Usage: check_system.sh PYTHON [test|page|arm|arm-root|arm-tiles|lint|fuzz]
# The second argument adds checks: `test` for the packages that tests need, `page` for the browser of `make test-page`, `arm` for the cross
# compiler and the emulator of `make test-arm`, `arm-root` for these two and for the tool with which `make test-arm-install` makes a Debian
# for 64-bit ARM, `arm-tiles` for llvm-mca, `lint` for the C++ headers of the other processor family (cmake/lint.py checks the sources for
# that family, too), and `fuzz` for the compiler of `make fuzz`.
python=$1
missing=""
why=""
need() { missing="$missing $1"; why="$why${why:+, }$2"; }

command -v "$python" >/dev/null 2>&1 || { echo "pumice: Python 3.10 or later is missing: apt-get install python3 python3-venv python3-dev" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "pumice: $("$python" --version) is too old: Python 3.10 or later is needed; give another one with make PYTHON=python3.x" >&2; exit 1; }
"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || need python3-venv "Python's venv"
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' || need python3-dev "Python's headers"
command -v "${CXX:-c++}" >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || need g++ "a C++20 compiler"
if [ "${2:-}" = test ]; then
  found=""
  for folder in /usr/include /usr/local/include; do [ -f "$folder/gtest/gtest.h" ] && found=yes; done
  [ -n "$found" ] || need libgtest-dev GoogleTest
  # Tests of the Vulkan backend run on software Vulkan (lavapipe) under the validation layers.
  vulkan_file() { for folder in /usr/share /usr/local/share /etc; do for file in "$folder"/vulkan/$1; do [ -f "$file" ] && return; done; done; false; }
  "$python" -c 'import ctypes; ctypes.CDLL("libvulkan.so.1")' 2>/dev/null || need libvulkan1 "the Vulkan loader"
  vulkan_file 'icd.d/lvp_icd*.json' || need mesa-vulkan-drivers "software Vulkan"
  vulkan_file explicit_layer.d/VkLayer_khronos_validation.json || need vulkan-validationlayers "the Vulkan validation layers"
fi
# The environment variable PUMICE_CHROMIUM may name another Chromium than the distribution's. Then the package is not needed.
[ "${2:-}" != page ] || [ -n "${PUMICE_CHROMIUM:-}" ] || command -v chromium-headless-shell >/dev/null 2>&1 || need chromium-headless-shell "a browser"
[ "${2:-}" != arm-root ] || command -v mmdebstrap >/dev/null 2>&1 || need mmdebstrap "a tool that makes a Debian root"
if [ "${2:-}" = arm ] || [ "${2:-}" = arm-root ]; then
  command -v aarch64-linux-gnu-g++ >/dev/null 2>&1 || need g++-aarch64-linux-gnu "a C++20 compiler for 64-bit ARM"
  command -v qemu-aarch64-static >/dev/null 2>&1 || need qemu-user-static "an emulator of 64-bit ARM"
  [ -f /usr/src/googletest/googletest/CMakeLists.txt ] || need googletest "the sources of GoogleTest"
fi
if [ "${2:-}" = fuzz ]; then  # the run-time libraries of Clang are in a package of their own
  command -v clang++-19 >/dev/null 2>&1 || need clang-19 "a compiler with libFuzzer"
  command -v llvm-symbolizer-19 >/dev/null 2>&1 || need llvm-19 "names of functions in findings"
  found=""
  for file in /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer-*.a; do [ -f "$file" ] && found=yes; done
  [ -n "$found" ] || need libclang-rt-19-dev libFuzzer
fi
if [ "${2:-}" = arm-tiles ]; then  # the llvm-mca of LLVM 14 does not know all instructions and all cores
  command -v llvm-mca-22 >/dev/null 2>&1 || command -v llvm-mca-19 >/dev/null 2>&1 || need llvm-19 "llvm-mca of LLVM 19"
fi
if [ "${2:-}" = lint ]; then
  case $(uname -m) in
    x86_64) other=aarch64-linux-gnu architecture=arm64 ;;
    *) other=x86_64-linux-gnu architecture=amd64 ;;
  esac
  found=""
  for folder in /usr/$other/include/c++/*; do [ -f "$folder/vector" ] && found=yes; done
  version=$(g++ -dumpversion 2>/dev/null | cut -d. -f1)
  [ -n "$found" ] || need "libstdc++-${version:-12}-dev-$architecture-cross" "C++ headers for $other"
fi
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "pumice: installing$missing ($why)" >&2
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $missing) >/dev/null && exit 0
fi
echo "pumice: $why missing; get it with: sudo apt-get install$missing" >&2
exit 1
