// Work without the GIL, in threads that the interpreter may outlive them.
//
// While Python ends, a daemon thread that asks for the GIL never gets it: up to Python 3.13 the interpreter calls pthread_exit() from
// inside of PyEval_RestoreThread(), which unwinds the thread's stack, and std::terminate() ends the process when that meets a destructor.
// Such a thread sleeps here until the process is gone, as Python 3.14 has it.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#if __has_include(<cxxabi.h>)
#include <cxxabi.h>
#endif

namespace pumice::bindings {

class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() { ends_with_python([this] { PyEval_RestoreThread(thread_); }); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // work() with the GIL; it throws nothing. Without it again afterwards.
  template <class Work>
  void with_gil(const Work& work) {
    ends_with_python([&] {
      PyEval_RestoreThread(thread_);
      work();
      thread_ = PyEval_SaveThread();
    });
  }

 private:
  template <class Call>
  static void ends_with_python(const Call& call) noexcept {
#if defined(__GLIBCXX__)
    try {
      call();
    } catch (abi::__forced_unwind&) {
      for (;;) ::pause();
    }
#else
    call();
#endif
  }

  PyThreadState* thread_;
};

}  // namespace pumice::bindings
