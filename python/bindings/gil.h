// Functions that call Python from C++ in threads that may still run while the interpreter shuts down.
//
// While Python shuts down, a daemon thread that asks for the GIL never gets it. Up to Python 3.13, the interpreter calls pthread_exit()
// inside the function that asks for the GIL, and this unwinds the thread's stack. The destructors on the stack then drop references without
// holding the GIL. The first destructor that asks for the GIL again, or the first catch (...), ends the process with SIGABRT ("terminate
// called without an active exception").
//
// Some operations may give up the GIL and take it again: the return of a thread to Python, a call of a Python function, an import, and the
// conversion of an object to text. All of these must be done through the functions of this file. If Python is shutting down, the thread
// then sleeps inside the function until the process is gone. Python 3.14 itself does the same.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pumice::bindings {

// If a thread's stack is unwound before `returned` is true, ~EndsHere() keeps the thread asleep for ever. A catch clause could not do this,
// because this code may run inside a handler of a C++ exception (where the text of an error is passed to Python). There, catching a foreign
// exception would call std::terminate().
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

// Returns the result of call(), which must not throw. If Python ends the thread inside call(), the thread sleeps for ever instead.
// Objects that `call` owns would then be destroyed first and without the GIL, so `call` must not own objects that have destructors.
// This function is not inlined. Inside a function that is noexcept (such as a destructor), the compiler could leave out the call of
// ~EndsHere().
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

// Gives up the GIL for the lifetime of the object.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    ends_with_python([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // Takes the GIL, runs work(), and gives the GIL up again. work() must not throw, and must call Python only through the functions below.
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

// Returns `made` as an object that owns the reference. If `made` is null, throws the Python exception that is set.
inline py::object checked(PyObject* made) {
  if (!made) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(made);
}

// Clears the Python exception that is set, if it is a subclass of Exception. Throws any other exception, for example KeyboardInterrupt.
inline void drop_error() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
  PyErr_Clear();
}

// Returns function(*arguments, **keywords).
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

// Runs the handlers of pending signals. From Python 3.12 on, this may also run the garbage collector. Throws what a handler raises.
inline void check_signals() {
  if (ends_with_python([] { return PyErr_CheckSignals(); }) != 0) throw py::error_already_set();
}

// Makes pybind11 look up numpy's functions now, instead of when it makes the first array. pybind11's code gives up the GIL during the
// look-up, and crashes if Python shuts down at that moment. The thread that opens a model file calls this function before another thread
// uses the file.
inline void prepare_arrays() {
  static bool prepared = false;  // protected by the GIL
  if (prepared) return;
  // While this thread is inside exit_waits, Python's shutdown waits for it. __exit__() is called explicitly and not by a destructor,
  // because a destructor could not pass on a KeyboardInterrupt.
  const py::object block = import_module("pumice.common.exits").attr("exit_waits");
  const auto leave = [&] { call(block.attr("__exit__"), py::tuple()); };
  call(block.attr("__enter__"), py::tuple());
  try {
    import_module("numpy");
    py::detail::npy_api::get();
  } catch (const std::exception&) {
    leave();
    throw;
  }
  leave();
  prepared = true;
}

// Returns a new array of this shape, filled with the first elements of `values`, which must have at least as many elements as the array.
// The elements are copied here, because numpy's own copy gives up the GIL and crashes if Python shuts down at that moment.
template <class T>
py::array_t<T> array_of(std::vector<py::ssize_t> shape, const std::vector<T>& values) {
  py::array_t<T> made(std::move(shape));
  std::copy_n(values.begin(), made.size(), made.mutable_data());
  return made;
}

}  // namespace pumice::bindings
