#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace pumice::bindings {

void bind_files(pybind11::module_& module);
std::string file_name(const pybind11::str& name);  // returns the bytes of the name, as the file system has them

}  // namespace pumice::bindings
