# Makes the files that the Vulkan backend needs: SPIR-V from shaders/*.comp, and the Vulkan headers from Khronos's registry. These files are
# never in git. They are made while an sdist is packed, and the sdist holds them in generated/, so that a build from an sdist needs neither
# the shader compiler nor the registry. A source folder that contains PKG-INFO is an unpacked sdist. Packing an sdist leaves generated/ in
# the git checkout as well; builds from the checkout do not read it.
file(GLOB shaders CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/shaders/*.comp)
list(TRANSFORM shaders REPLACE "^.*/(.*)\\.comp$" "\\1" OUTPUT_VARIABLE names)
list(SORT names)
set(most_spirv 1048576)  # maximum total size, in bytes, of the SPIR-V in the module

if(SKBUILD_STATE STREQUAL "sdist" OR EXISTS ${PROJECT_SOURCE_DIR}/PKG-INFO)
  set(generated ${PROJECT_SOURCE_DIR}/generated)
else()
  set(generated ${CMAKE_BINARY_DIR}/generated)
endif()
list(TRANSFORM names PREPEND ${generated}/shaders/ OUTPUT_VARIABLE spirv)
list(TRANSFORM spirv APPEND .spv)

list(JOIN names "," joined)
set(measure ${CMAKE_COMMAND} -DFOLDER=${generated}/shaders -DNAMES=${joined} -DMOST=${most_spirv} -P ${CMAKE_CURRENT_LIST_DIR}/measure_spirv.cmake)
# `sum` is a checksum of all files from which the SPIR-V is made. An sdist stores it. A build from an sdist does not compile shaders, so it
# compares the checksums and fails if a shader was edited after packing.
file(GLOB sources ${PROJECT_SOURCE_DIR}/shaders/*.comp ${PROJECT_SOURCE_DIR}/shaders/*.glsl ${PROJECT_SOURCE_DIR}/shaders/*.h)
# The shaders' switch statements are made from the lists of formats and activations.
set(lists ${PROJECT_SOURCE_DIR}/cpp/core)
list(APPEND sources ${lists}/formats.def ${lists}/activations.def ${CMAKE_CURRENT_LIST_DIR}/generate_formats.py)
set(sums "")
foreach(source IN LISTS sources)
  file(SHA256 ${source} sum)
  string(APPEND sums ${sum})
endforeach()
string(SHA256 sum "${sums}")

if(EXISTS ${PROJECT_SOURCE_DIR}/PKG-INFO)
  execute_process(COMMAND ${measure} COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${generated}/shaders/sources.sha256 packed)
  if(NOT packed STREQUAL sum)
    message(FATAL_ERROR "pumice: shaders/ is not what this sdist's SPIR-V was made of; to change shaders, build from a git checkout")
  endif()
else()
  if(SKBUILD_STATE STREQUAL "sdist")
    file(REMOVE_RECURSE ${generated})
  endif()
  file(MAKE_DIRECTORY ${generated}/shaders)
  set(inputs ${CMAKE_CURRENT_LIST_DIR}/generate_vulkan_headers.py ${CMAKE_CURRENT_LIST_DIR}/generate_formats.py ${lists}/formats.def ${lists}/activations.def)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${inputs})
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/generate_vulkan_headers.py ${generated} COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/generate_formats.py ${lists} ${CMAKE_BINARY_DIR}/shaders
    COMMAND_ERROR_IS_FATAL ANY)

  # The optimiser spirv-opt is not used, because drivers optimise anyway and it has miscompiled shaders. -g0 leaves out debug names.
  # LD_LIBRARY_PATH is set because the compiler that comes as a wheel has no RPATH.
  foreach(name IN LISTS names)
    set(source ${PROJECT_SOURCE_DIR}/shaders/${name}.comp)
    set(target ${generated}/shaders/${name}.spv)
    set(depfile ${CMAKE_BINARY_DIR}/shaders/${name}.d)
    set(compile ${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${PUMICE_GLSLANG}/lib:${PUMICE_SPIRV_TOOLS}/lib" ${PUMICE_GLSLANG}/bin/glslangValidator -V --quiet
        --target-env vulkan1.2 -g0 -I${PROJECT_SOURCE_DIR}/shaders -I${CMAKE_BINARY_DIR}/shaders --depfile ${depfile} -o ${target} ${source})
    set(check ${PUMICE_SPIRV_TOOLS}/bin/spirv-val --target-env vulkan1.2 ${target})
    if(SKBUILD_STATE STREQUAL "sdist")
      execute_process(COMMAND ${compile} COMMAND_ERROR_IS_FATAL ANY)
      execute_process(COMMAND ${check} COMMAND_ERROR_IS_FATAL ANY)
    else()
      add_custom_command(
        OUTPUT ${target}
        COMMAND ${compile}
        COMMAND ${check}
        DEPENDS ${source}
        DEPFILE ${depfile}
        COMMENT "Compiling shader ${name}"
        VERBATIM)
    endif()
  endforeach()
  if(SKBUILD_STATE STREQUAL "sdist")
    execute_process(COMMAND ${measure} COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${generated}/shaders/sources.sha256 ${sum})
  else()
    set(measured ${CMAKE_BINARY_DIR}/shaders/measured)
    add_custom_command(
      OUTPUT ${measured}
      COMMAND ${measure}
      COMMAND ${CMAKE_COMMAND} -E touch ${measured}
      DEPENDS ${spirv}
      COMMENT "Measuring SPIR-V"
      VERBATIM)
    add_custom_target(pumice_spirv DEPENDS ${measured})
  endif()
endif()
if(NOT TARGET pumice_spirv)
  add_custom_target(pumice_spirv)
endif()

# Writes the list of shaders that cpp/vulkan/shaders.S and shaders.cpp include. Each line is PUMICE_SHADER(name, "path of its SPIR-V").
set(text "")
foreach(name path IN ZIP_LISTS names spirv)
  string(APPEND text "PUMICE_SHADER(${name}, \"${path}\")\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/shaders/shaders.def CONTENT "${text}" @ONLY)
set(PUMICE_SPIRV ${spirv})
set(PUMICE_SHADER_LIST ${CMAKE_BINARY_DIR}/shaders/shaders.def)

add_library(pumice_vulkan_headers INTERFACE)
target_include_directories(pumice_vulkan_headers SYSTEM INTERFACE ${generated})
target_compile_definitions(pumice_vulkan_headers INTERFACE VK_NO_PROTOTYPES)
