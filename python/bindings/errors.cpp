#include "errors.h"

#include "core/error.h"
#include "gil.h"

namespace py = pybind11;

namespace pumice::bindings {
namespace {

const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid_argument";
    case ErrorKind::wrong_type:
      return "wrong_type";
    case ErrorKind::io:
      return "io";
    case ErrorKind::model_format:
      return "model_format";
    case ErrorKind::unsupported_model:
      return "unsupported_model";
    case ErrorKind::context_length:
      return "context_length";
    case ErrorKind::unsupported_task:
      return "unsupported_task";
    case ErrorKind::out_of_memory:
      return "out_of_memory";
    case ErrorKind::device:
      return "device";
    case ErrorKind::device_not_found:
      return "device_not_found";
    case ErrorKind::device_lost:
      return "device_lost";
    case ErrorKind::forked_device:
      return "forked_device";
    case ErrorKind::out_of_device_memory:
      return "out_of_device_memory";
    case ErrorKind::overloaded:
      return "overloaded";
    case ErrorKind::numeric:
      return "numeric";
    case ErrorKind::grammar:
      return "grammar";
    case ErrorKind::grammar_busy:
      return "grammar_busy";
    case ErrorKind::cancelled:
      return "cancelled";
  }
  return "base";
}

// Returns a built-in Python exception class for an error. This class is raised if pumice.errors has not registered its own classes: before
// it is imported, and in tests that use _core alone.
PyObject* builtin(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
    case ErrorKind::context_length:
    case ErrorKind::model_format:
    case ErrorKind::grammar:
      return PyExc_ValueError;
    case ErrorKind::wrong_type:
    case ErrorKind::unsupported_task:
      return PyExc_TypeError;
    case ErrorKind::io:
      return PyExc_OSError;
    case ErrorKind::out_of_memory:
    case ErrorKind::out_of_device_memory:
      return PyExc_MemoryError;
    case ErrorKind::cancelled:
      return PyExc_KeyboardInterrupt;
    default:
      return PyExc_RuntimeError;
  }
}

py::dict& types() {
  static auto& known = *new py::dict;
  return known;
}

// Converts a message to str. Messages may quote names and texts from files, and these can be any bytes. Bytes that are not valid UTF-8 are
// escaped as \xNN. So are control characters, because they could move a terminal's cursor.
py::str text(const std::string& message) {
  std::string bytes;
  for (const char c : message) {
    const auto code = static_cast<unsigned char>(c);
    if ((code >= 32 && code != 127) || c == '\n' || c == '\t') {
      bytes += c;
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      bytes += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
    }
  }
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

void raise(const Error& error) {
  const py::object type = types().contains(kind_name(error.kind())) ? py::object(types()[kind_name(error.kind())])
                                                                    : py::reinterpret_borrow<py::object>(builtin(error.kind()));
  if (error.kind() == ErrorKind::model_format && types().contains("model_format")) {
    const py::object offset = error.offset() ? py::object(py::int_(*error.offset())) : py::object(py::none());
    const py::object exception =
        call(type, py::make_tuple(text(error.what())),
             py::dict(py::arg("file") = text(error.file()), py::arg("field") = text(error.field()), py::arg("offset") = offset));
    PyErr_SetObject(type.ptr(), exception.ptr());
    return;
  }
  const py::object message = text(error.what());
  // From Python 3.12 on, PyErr_SetObject() calls the exception class, which may run Python code. If Python is shutting down, this code may
  // end the thread (see gil.h).
  ends_with_python([&] { PyErr_SetObject(type.ptr(), message.ptr()); });
}

}  // namespace

void bind_errors(py::module_& module) {
  module.def(
      "set_error_types",
      [](const py::dict& given) {
        types().clear();
        for (const auto& [kind, type] : given) types()[kind] = type;
      },
      py::arg("types"));
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    } catch (const std::bad_alloc&) {
      raise(Error(ErrorKind::out_of_memory, "out of memory"));
    }
  });
}

}  // namespace pumice::bindings
