// Converts numpy arrays to spans, and vectors to numpy arrays.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"
#include "gil.h"

namespace pumice::bindings {

// Returns the values of an array argument. Throws wrong_type (TypeError) unless the array is C-contiguous and has exactly this type and
// number of dimensions. The array is not converted, because the Python package does this before it calls _core.
template <class T>
std::span<const T> values(const py::array& array, int dims, const char* name) {
  if (!py::isinstance<py::array_t<T>>(array) || array.ndim() != dims || !(array.flags() & py::array::c_style)) {
    fail(ErrorKind::wrong_type, name, " must be a C-contiguous ", dims, "-dimensional array of ", text_of(py::dtype::of<T>()), ", found ",
         array.ndim(), " dimensions of ", text_of(array.dtype()));
  }
  return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}

inline std::span<const std::int32_t> ids_of(const py::array& array) { return values<std::int32_t>(array, 1, "ids"); }

template <class T>
py::array_t<T> to_array(const std::vector<T>& from) {
  return array_of({static_cast<py::ssize_t>(from.size())}, from);
}

template <class T>
py::array_t<T> to_array(const std::vector<T>& from, py::ssize_t columns) {
  const py::ssize_t rows = columns == 0 ? 0 : static_cast<py::ssize_t>(from.size()) / columns;
  return array_of({rows, columns}, from);
}

inline std::span<float> writable(py::array_t<float>& array) { return {array.mutable_data(), static_cast<std::size_t>(array.size())}; }

}  // namespace pumice::bindings
