// The module pumice._core, through which Python uses the engine. The code here mostly converts types. python/pumice/_core.pyi documents the
// module.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/error.h"
#include "core/formats.h"
#include "core/version.h"
#include "engine/devices.h"
#include "engine/diagnostics.h"
#include "calibration.h"
#include "encoders.h"
#include "errors.h"
#include "file.h"
#include "gil.h"
#include "grammar.h"
#include "interruptible.h"
#include "model.h"
#include "model/family.h"
#include "ops.h"
#include "options.h"
#include "params.h"
#include "requests.h"
#include "text/spm_merges.h"

namespace py = pybind11;
using namespace py::literals;

namespace pumice::bindings {
namespace {

py::list devices() {
  std::vector<DeviceInfo> found;
  {
    const WithoutGil released;  // opening Vulkan takes long
    found = engine::devices();
  }
  py::list out;
  for (const DeviceInfo& d : found) {
    out.append(py::dict("id"_a = d.id, "name"_a = d.name, "type"_a = name(d.type), "driver"_a = d.driver, "memory_total"_a = d.memory_total,
                        "memory_free"_a = d.memory_free, "features"_a = d.features, "usable"_a = d.usable, "why_not"_a = d.why_not));
  }
  return out;
}

py::dict build_info() {
  std::vector<std::string> formats;
  py::dict families;
  for (const FormatInfo& format : kFormats) formats.emplace_back(format.name);
  const auto texts = [](std::span<const std::string_view> names) { return std::vector<std::string>(names.begin(), names.end()); };
  for (const model::Family* family : model::families()) {
    families[py::str(std::string(family->name))] =
        py::dict("gguf"_a = texts(family->gguf_names), "model_type"_a = texts(family->model_types));
  }
  const engine::CpuFacts cpu = engine::cpu_facts();
  return py::dict("version"_a = version(), "compiler"_a = "GCC-compatible " __VERSION__, "isa"_a = cpu.isa, "isas"_a = cpu.isas,
                  "blas"_a = cpu.blas, "threads"_a = cpu.threads, "huge_pages"_a = cpu.huge_pages, "formats"_a = formats,
                  "pack_formats"_a = pack_formats(), "architectures"_a = families);
}

py::list self_test() {
  std::vector<engine::KernelCheck> checks;
  {
    const WithoutGil released;
    checks = engine::check_kernels();
  }
  py::list out;
  for (const engine::KernelCheck& check : checks) {
    out.append(py::dict("name"_a = check.name, "ok"_a = check.ok, "error"_a = check.error, "limit"_a = check.limit,
                        "detail"_a = engine::isa() + " against scalar, NMSE"));
  }
  return out;
}

// Makes every use of an object raise an error if the object was made by Class.__new__(Class) without a constructor. Such an object has no
// C++ object. At its first use, pybind11 would call operator_new and use the allocated memory uninitialized, so operator_new is replaced
// here by a function that throws. (Functions that take a shared_ptr of the class raise pybind11's own RuntimeError before that.)
void require_constructors(const py::module_& module) {
  const py::dict members = module.attr("__dict__");
  for (const auto& [name, value] : members) {
    if (!PyType_Check(value.ptr())) continue;
    if (py::detail::type_info* type = py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr()))) {
      type->operator_new = [](std::size_t) -> void* {
        fail(ErrorKind::wrong_type, "this object was made by __new__() alone, so there is nothing in it: call the class instead");
      };
    }
  }
}

// Returns the merges of a SentencePiece vocabulary. The tokens are copied to a tuple, because a list could be changed while the GIL is
// released.
py::array_t<std::int32_t> spm_merges(const py::iterable& tokens,
                                     const py::array_t<float, py::array::c_style | py::array::forcecast>& scores,
                                     const py::array_t<std::uint8_t, py::array::c_style | py::array::forcecast>& mergeable) {
  const py::tuple texts(tokens);
  std::vector<std::string_view> views;
  views.reserve(texts.size());
  for (const py::handle text : texts) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_Check(text.ptr()) ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
    if (!bytes) {
      PyErr_Clear();
      fail(ErrorKind::model_format, "token ", views.size(), " of the vocabulary is no valid text");
    }
    views.emplace_back(bytes, static_cast<std::size_t>(size));
  }
  std::vector<text::Merge> merges;
  {
    const WithoutGil released;
    merges = text::spm_merges(views, {scores.data(), static_cast<std::size_t>(scores.size())},
                              {mergeable.data(), static_cast<std::size_t>(mergeable.size())});
  }
  py::array_t<std::int32_t> out({static_cast<py::ssize_t>(merges.size()), py::ssize_t{2}});
  std::int32_t* pair = out.mutable_data();
  for (const text::Merge& merge : merges) *pair++ = merge.left, *pair++ = merge.right;
  return out;
}

}  // namespace
}  // namespace pumice::bindings

PYBIND11_MODULE(pumice_core, module) {  // defines PyInit_pumice_core(), which PyInit__core() calls
  using namespace pumice::bindings;
  module.attr("__version__") = pumice::version();
  find_main_thread();
  bind_errors(module);
  bind_files(module);
  bind_grammars(module);
  bind_options(module);
  // The class is defined before the functions that take or return a Model, because pybind11 writes its name into their docstrings.
  py::class_<ModelHandle> model(module, "Model");
  bind_params(module);
  bind_encoders(module, model);
  bind_requests(module, model);
  bind_model(module, model);
  bind_ops(module);
  bind_calibration(module);
  require_constructors(module);
  require_constructors(module.attr("ops"));
  module.def("devices", &devices);
  module.def("build_info", &build_info);
  module.def("self_test", &self_test);
  module.def("spm_merges", &spm_merges, "tokens"_a, "scores"_a, "mergeable"_a);
}

// Python calls this function to import _core. In a sub-interpreter it raises ImportError at once. Otherwise the import would never return,
// because pybind11 would wait for the GIL of the main interpreter, which this thread holds.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "pumice works in Python's main interpreter only, and this is a sub-interpreter; import it in the main interpreter, "
                    "or use a process (multiprocessing) in place of the sub-interpreter");
    return nullptr;
  }
  return PyInit_pumice_core();
}
