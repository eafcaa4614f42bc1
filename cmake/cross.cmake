# Prepares a cross build of the Python module. The headers come from the Python that runs CMake's scripts on the build machine.
# (tests/cpp/CMakeLists.txt takes GoogleTest's sources from the build machine, too.) Without a machine of the target's kind, a cross build
# only shows that the sources compile and link.
set(query "import sysconfig as s; print(s.get_path('include'), s.get_config_var('MULTIARCH'), s.get_config_var('EXT_SUFFIX'), sep=';')")
execute_process(COMMAND ${Python_EXECUTABLE} -c "${query}" OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET found 0 headers)
list(GET found 1 here)
list(GET found 2 suffix)
set(there ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
if(APPLE)
  set(there darwin)
endif()
string(REPLACE ${here} ${there} PYTHON_MODULE_EXTENSION "${suffix}")
set(PYTHON_MODULE_DEBUG_POSTFIX "")
set(PYTHON_IS_DEBUG OFF)

# Copies the headers. pyconfig.h is the build machine's, because 64-bit targets have types of the same sizes. Debian keeps one pyconfig.h
# for each processor family, for example x86_64-linux-gnu/python3.11/pyconfig.h. For macOS the copy undefines _POSIX_C_SOURCE and
# _XOPEN_SOURCE, because Python's own pyconfig.h for macOS does not define them. With them, macOS's headers would hide what POSIX does not
# have.
get_filename_component(python ${headers} NAME)
get_filename_component(above ${headers} DIRECTORY)
set(settings ${headers}/pyconfig.h)
if(EXISTS ${above}/${here}/${python}/pyconfig.h)
  set(settings ${above}/${here}/${python}/pyconfig.h)
endif()
set(Python_INCLUDE_DIR ${CMAKE_BINARY_DIR}/headers/${python})
file(COPY ${headers}/ DESTINATION ${Python_INCLUDE_DIR} PATTERN pyconfig.h EXCLUDE)
file(CONFIGURE OUTPUT ${Python_INCLUDE_DIR}/pyconfig.h CONTENT "#include \"${settings}\"
#ifdef __APPLE__
#undef _POSIX_C_SOURCE
#undef _XOPEN_SOURCE
#endif
" @ONLY)

if(PUMICE_LINK_MODULE)  # set by the toolchain file
  set(CMAKE_CXX_CREATE_SHARED_MODULE "${PUMICE_LINK_MODULE}")
endif()
