# What the build takes from PyPI packages, found by asking the build's own Python (never by importing them: that would load OpenBLAS).
execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/find_packages.py
  OUTPUT_VARIABLE PUMICE_PACKAGES
  ERROR_VARIABLE PUMICE_PACKAGES_ERROR
  RESULT_VARIABLE PUMICE_PACKAGES_RESULT)
if(NOT PUMICE_PACKAGES_RESULT EQUAL 0)
  message(FATAL_ERROR "pumice: ${PUMICE_PACKAGES_ERROR}")
endif()
string(JSON PUMICE_JSON_INCLUDE GET "${PUMICE_PACKAGES}" json_include)
string(JSON PUMICE_OPENBLAS_LIBRARY GET "${PUMICE_PACKAGES}" openblas_library)
string(JSON PUMICE_OPENBLAS_LICENSE GET "${PUMICE_PACKAGES}" openblas_license)
add_library(pumice_json INTERFACE)
target_include_directories(pumice_json SYSTEM INTERFACE ${PUMICE_JSON_INCLUDE})
