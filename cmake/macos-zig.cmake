# A toolchain file for cmake -DCMAKE_TOOLCHAIN_FILE: compiles for macOS on Linux. Zig contains all that is needed: Clang, libc++, and the
# headers of macOS's C library. -DPUMICE_ZIG is the path of the program zig, and -DCMAKE_SYSTEM_PROCESSOR is arm64 or x86_64.
set(CMAKE_SYSTEM_NAME Darwin)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PUMICE_ZIG CMAKE_SYSTEM_PROCESSOR)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

# Reads from pyproject.toml the oldest version of macOS that the wheels support.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../pyproject.toml oldest REGEX MACOSX_DEPLOYMENT_TARGET)
if(NOT oldest MATCHES "MACOSX_DEPLOYMENT_TARGET = \"([0-9.]+)\"")
  message(FATAL_ERROR "pumice: pyproject.toml has no line MACOSX_DEPLOYMENT_TARGET = \"...\" with the oldest macOS that wheels are for")
endif()
set(oldest ${CMAKE_MATCH_1})

# `zig clang` is Clang itself. `zig c++` is not used, because it takes the value of -march for one of Zig's own names of processors, and so
# rejects the values of -march in cpp/cpu/isa/sets.def.
get_filename_component(lib ${PUMICE_ZIG} DIRECTORY)
set(lib ${lib}/lib)
foreach(language C CXX ASM)
  set(CMAKE_${language}_COMPILER_TARGET ${CMAKE_SYSTEM_PROCESSOR}-apple-macos${oldest})
  set(CMAKE_${language}_COMPILER ${PUMICE_ZIG} clang -target ${CMAKE_${language}_COMPILER_TARGET})
  # "s" writes the index, without which Mach-O archives do not link
  set(CMAKE_${language}_ARCHIVE_CREATE "\"${PUMICE_ZIG}\" ar qcs <TARGET> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "")
endforeach()
set(headers "-isystem \"${lib}/include\" -isystem \"${lib}/libc/include/any-darwin-any\"")
set(CMAKE_C_FLAGS_INIT "-nostdinc ${headers}")
# Zig's copy of libc++ has no __config_site, so these definitions take its place. _LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS makes the use
# of any part of libc++ that the oldest macOS lacks an error, as Apple's compiler does. The others are the values of libc++ for macOS.
set(libcxx "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1")
foreach(setting ABI_VERSION=1 ABI_NAMESPACE=__1 HAS_THREADS=1 HAS_MONOTONIC_CLOCK=1 HAS_TERMINAL=1 HAS_MUSL_LIBC=0 HAS_FILESYSTEM=1
        HAS_RANDOM_DEVICE=1 HAS_LOCALIZATION=1 HAS_UNICODE=1 HAS_WIDE_CHARACTERS=1 HAS_NO_STD_MODULES PSTL_BACKEND_SERIAL
        HARDENING_MODE=_LIBCPP_HARDENING_MODE_NONE ASSERTION_SEMANTIC_DEFAULT=_LIBCPP_ASSERTION_SEMANTIC_IGNORE)
  string(APPEND libcxx " -D_LIBCPP_${setting}")
endforeach()
set(CMAKE_CXX_FLAGS_INIT "-nostdinc -nostdinc++ -isystem \"${lib}/libcxx/include\" -isystem \"${lib}/libcxxabi/include\" ${headers} ${libcxx}")

# Zig's linker makes dynamic libraries (-dynamiclib) but no bundles (-bundle). Python loads both. The module is linked with `zig cc`,
# because `zig c++` would compile Zig's libc++, and the module must use the system's libc++. tests/macos/symbols.py checks the symbols that
# are only looked up when the module is loaded.
string(REPLACE arm64 aarch64 target ${CMAKE_SYSTEM_PROCESSOR}-macos.${oldest})
set(PUMICE_LINK_MODULE "\"${PUMICE_ZIG}\" cc -target ${target} -dynamiclib -undefined dynamic_lookup -o <TARGET> <OBJECTS> <LINK_LIBRARIES>")

# Zig has neither install_name_tool nor strip. A module that is never loaded needs neither, so both are replaced by the program `true`.
set(CMAKE_INSTALL_NAME_TOOL true)
set(CMAKE_STRIP true)
