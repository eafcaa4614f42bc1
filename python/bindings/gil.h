// Calls of Python from C++, in threads that may still run while the interpreter ends.
//
// While Python ends, a daemon thread that asks for the GIL never gets it: up to Python 3.13 the interpreter calls pthread_exit() inside
// the function that asks, and this unwinds the thread's stack. Destructors then drop references without the GIL. The first one that asks
// for the GIL again, or a catch (...), ends the process with SIGABRT ("terminate called without an active exception").
// So every operation that may give up the GIL and take it again (a thread's return to Python, a Python function, an import, the text of
// an object) is called through a function of this file. There such a thread sleeps until the process is gone, as in Python 3.14.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pumice::bindings {

// A thread that reaches this destructor while its stack is unwound sleeps for ever. It is a destructor and not a catch, because inside a
// handler of C++ exceptions (where the text of an error goes to Python) catching a foreign exception calls std::terminate(), and a
// destructor does not.
class EndsHere {
 public:
  EndsHere() = default;
  EndsHere(const EndsHere&) = delete;
  EndsHere& operator=(const EndsHere&) = delete;
  ~EndsHere() {
    while (!returned) ::pause();
  }

  volatile bool returned = false;
};

// Returns call()'s result; call() must not throw. If Python ends the thread inside `call`, the thread sleeps there for ever, so `call` must
// own nothing that has a destructor. Not inlined, because under a noexcept caller (a destructor) a compiler may leave out the cleanup.
template <class Call>
[[gnu::noinline]] auto ends_with_python(const Call& call) {
  EndsHere end;
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    end.returned = true;
  } else {
    const auto given = call();
    end.returned = true;
    return given;
  }
}

class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    ends_with_python([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Runs work() with the GIL, and gives the GIL up again. work() must not throw, and calls Python only through the functions below.
  template <class Work>
  void with_gil(const Work& work) {
    ends_with_python([this] { PyEval_RestoreThread(thread_); });
    work();
    thread_ = PyEval_SaveThread();
  }

 private:
  PyThreadState* thread_;
};

namespace py = pybind11;

inline py::object checked(PyObject* made) {
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// function(*arguments, **keywords)
inline py::object call(const py::handle& function, const py::tuple& arguments, const py::dict& keywords = {}) {
  return checked(ends_with_python([&] { return PyObject_Call(function.ptr(), arguments.ptr(), keywords.ptr()); }));
}

inline py::object import_module(const char* name) {
  return checked(ends_with_python([&] { return PyImport_ImportModule(name); }));
}

inline std::string repr_of(const py::handle& object) {
  return checked(ends_with_python([&] { return PyObject_Repr(object.ptr()); })).cast<std::string>();
}

inline std::string text_of(const py::handle& object) {
  return checked(ends_with_python([&] { return PyObject_Str(object.ptr()); })).cast<std::string>();
}

// Signal handlers and, from Python 3.12 on, the garbage collector.
inline void check_signals() {
  if (ends_with_python([] { return PyErr_CheckSignals(); }) != 0) throw py::error_already_set();
}

// For calls that cannot go through the functions above: the end of Python waits until this object is destroyed (pumice.common.exits).
class ExitWaits {
 public:
  ExitWaits() : block_(import_module("pumice.common.exits").attr("exit_waits")) { call(block_.attr("__enter__"), py::tuple()); }
  ~ExitWaits() {
    const auto none =
        py::reinterpret_steal<py::object>(ends_with_python([this] { return PyObject_CallMethod(block_.ptr(), "__exit__", nullptr); }));
    if (!none) PyErr_Clear();
  }
  ExitWaits(const ExitWaits&) = delete;
  ExitWaits& operator=(const ExitWaits&) = delete;

 private:
  py::object block_;
};

// At the first array pybind11 looks up numpy's functions, behind a once flag. Meanwhile it gives up the GIL in scopes of its own, which do
// not survive the end of Python. So the thread that opens a file does this lookup, before another thread works with that file.
inline void prepare_arrays() {
  static bool prepared = false;  // under the GIL
  if (prepared) return;
  const ExitWaits block;
  import_module("numpy");
  py::detail::npy_api::get();
  prepared = true;
}

// A new array of this shape, filled with the first of the values. numpy's own copy gives up the GIL in a scope that does not survive the
// end of Python.
template <class T>
py::array_t<T> array_of(std::vector<py::ssize_t> shape, const std::vector<T>& values) {
  py::array_t<T> made(std::move(shape));
  std::copy_n(values.begin(), made.size(), made.mutable_data());
  return made;
}

}  // namespace pumice::bindings
