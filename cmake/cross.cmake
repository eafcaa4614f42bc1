# What a cross build takes from the build machine: the headers of the Python that runs CMake's scripts. (tests/cpp/CMakeLists.txt takes
# GoogleTest's sources.) Without an ARM machine, a module that was built in this way shows that the sources compile and link.
set(query "import sysconfig as s; print(s.get_path('include'), s.get_config_var('MULTIARCH'), s.get_config_var('EXT_SUFFIX'), sep=';')")
execute_process(COMMAND ${Python_EXECUTABLE} -c "${query}" OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET found 0 Python_INCLUDE_DIR)
list(GET found 1 here)
list(GET found 2 suffix)
set(there ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
string(REPLACE ${here} ${there} PYTHON_MODULE_EXTENSION "${suffix}")
set(PYTHON_MODULE_DEBUG_POSTFIX "")
set(PYTHON_IS_DEBUG OFF)

# Debian's pyconfig.h includes that of the compiler's target, for example <aarch64-linux-gnu/python3.11/pyconfig.h>, which the package
# libpython3-dev:arm64 would bring. All 64-bit Linux targets have types of the same sizes, so the build machine's serves.
get_filename_component(python ${Python_INCLUDE_DIR} NAME)
get_filename_component(headers ${Python_INCLUDE_DIR} DIRECTORY)
if(EXISTS ${headers}/${here}/${python}/pyconfig.h)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers/${there}/${python}/pyconfig.h
       CONTENT "#include \"${headers}/${here}/${python}/pyconfig.h\"\n" @ONLY)
  include_directories(SYSTEM ${CMAKE_BINARY_DIR}/headers)
endif()
