# Makes our copy of OpenBLAS. Nothing is linked with the copy: cpp/cpu/blas.cpp opens it at run time, and looks for it in the folder of the
# module or program that contains blas.cpp.
set(PUMICE_OPENBLAS_COPY ${CMAKE_BINARY_DIR}/openblas/libpumiceopenblas.so)
add_custom_command(
  OUTPUT ${PUMICE_OPENBLAS_COPY}
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/copy_openblas.py ${PUMICE_OPENBLAS_LIBRARY} ${PUMICE_OPENBLAS_COPY}
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/copy_openblas.py ${PUMICE_OPENBLAS_LIBRARY}
  COMMENT "Copying OpenBLAS under our SONAME"
  VERBATIM)

# The programs and the module of the build folder look for the copy in their own folder, so each of these folders gets a link to the copy.
set(links)
foreach(folder tests/cpp bench python/bindings)
  set(link ${CMAKE_BINARY_DIR}/${folder}/libpumiceopenblas.so)
  add_custom_command(
    OUTPUT ${link}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/${folder}
    COMMAND ${CMAKE_COMMAND} -E create_symlink ${PUMICE_OPENBLAS_COPY} ${link}
    DEPENDS ${PUMICE_OPENBLAS_COPY}
    VERBATIM)
  list(APPEND links ${link})
endforeach()
add_custom_target(pumice_openblas ALL DEPENDS ${links})  # pumice_cpu depends on this target

if(PUMICE_BUILD_PYTHON)
  install(FILES ${PUMICE_OPENBLAS_COPY} DESTINATION pumice)
  install(FILES ${PUMICE_OPENBLAS_LICENSE} DESTINATION pumice RENAME libpumiceopenblas.LICENSE.txt)
endif()
