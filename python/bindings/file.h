#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "files/metadata.h"

namespace pumice::bindings {

pybind11::object to_python(const files::Value& value);
void bind_files(pybind11::module_& module);
std::string file_name(const pybind11::str& name);  // returns the bytes of a file name, as the file system stores them

}  // namespace pumice::bindings
