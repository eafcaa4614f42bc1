#include "file.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "core/formats.h"
#include "files/file.h"
#include "files/made_tensor.h"
#include "files/model_file.h"
#include "files/new_file.h"
#include "gil.h"
#include "interruptible.h"

namespace py = pybind11;

namespace pumice::bindings {
namespace {

using files::ModelFile;

// Converts UTF-8 to str. Bytes that are not UTF-8 become surrogate escapes, as in os.fsdecode(). Vocabularies may have such bytes, for
// example in a token that is a single byte.
py::str to_str(std::string_view bytes) {
  PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape");
  if (!text) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

py::bytes read(const ModelFile& file, const std::string& name, std::uint64_t offset, std::optional<std::uint64_t> count) {
  const files::TensorInfo* tensor = file.find(name);
  require(tensor != nullptr, file.path(), " has no tensor ", name);
  require(offset <= tensor->bytes && count.value_or(0) <= tensor->bytes - offset, "read: bytes from ", offset, " on are not all in ", name,
          ", which has ", tensor->bytes);
  const std::uint64_t wanted = count.value_or(tensor->bytes - offset);
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(wanted));
  if (!bytes) throw py::error_already_set();
  const auto result = py::reinterpret_steal<py::bytes>(bytes);
  auto* to = reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(bytes));
  interruptible([&](const Cancel&) { file.read(*tensor, offset, wanted, to); });
  return result;
}

// Returns the bytes of a text file or settings file of at most `most` bytes. `given` is true if the user named the file, and false if the
// file was found beside a model's weights.
py::bytes read_file(const py::str& name, std::uint64_t most, bool given) {
  const std::string path = file_name(name);
  std::optional<files::File> file;
  interruptible([&](const Cancel&) { file = given ? files::File::open(path) : files::File::open_in_folder(path); });
  file->require_size(most);
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(file->size()));
  if (!bytes) throw py::error_already_set();
  auto result = py::reinterpret_steal<py::bytes>(bytes);
  char* to = PyBytes_AS_STRING(bytes);
  interruptible([&](const Cancel&) { file->read(0, file->size(), to); });
  return result;
}

std::string_view format(const ModelFile& file, const std::string& name) {
  const files::TensorInfo* tensor = file.find(name);
  require(tensor != nullptr, file.path(), " has no tensor ", name);
  return pumice::name(file.format(*tensor));
}

void write(files::NewFile& file, std::uint64_t at, const py::buffer& bytes) {
  Py_buffer view;
  if (PyObject_GetBuffer(bytes.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> held(&view, PyBuffer_Release);
  interruptible([&](const Cancel&) { file.write(at, {static_cast<const std::uint8_t*>(view.buf), static_cast<std::size_t>(view.len)}); });
}

struct ToPython {
  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(const files::Nested&) const { return py::none(); }
  py::object operator()(bool value) const { return py::bool_(value); }
  py::object operator()(std::int64_t value) const { return py::int_(value); }
  py::object operator()(std::uint64_t value) const { return py::int_(value); }
  py::object operator()(double value) const { return py::float_(value); }
  py::object operator()(const std::string& value) const { return to_str(value); }
  py::object operator()(const std::vector<bool>& values) const {
    py::array_t<bool> out(static_cast<py::ssize_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) out.mutable_data()[i] = values[i];
    return out;
  }
  template <class T>
  py::object operator()(const std::vector<T>& values) const {
    return array_of({static_cast<py::ssize_t>(values.size())}, values);
  }
  py::object operator()(const files::StringList& values) const {
    py::list out(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) out[i] = to_str(values[i]);
    return out;
  }
};

}  // namespace

py::object to_python(const files::Value& value) { return std::visit(ToPython{}, value); }

namespace {

py::object get(const ModelFile& file, const std::string& key) {
  const files::Value* value = file.value(key);
  return value ? to_python(*value) : py::object(py::none());
}

py::object metadata(const ModelFile& file) {
  if (file.kind() == files::Kind::safetensors) return call(import_module("json").attr("loads"), py::make_tuple(to_str(file.json_text())));
  py::dict out;
  for (const auto& [key, value] : file.metadata().entries()) out[to_str(key)] = to_python(value);
  return out;
}

std::string architecture(const ModelFile& file) {
  return file.string(file.kind() == files::Kind::gguf ? "general.architecture" : "model_type").value_or("");
}

py::list tensors(const ModelFile& file) {
  py::list out;
  for (const auto& tensor : file.tensors()) {
    out.append(py::make_tuple(to_str(tensor.name), tensor.format_name, py::tuple(py::cast(tensor.shape)), tensor.bytes));
  }
  return out;
}

// Returns None if read() returns the tensor's rows as they are in the file. Otherwise returns two texts: the name of the packing in the
// file, and the reason why no format of pumice holds these weights exactly ("" if a format does).
py::object packing(const ModelFile& file, const std::string& name) {
  const files::TensorInfo* tensor = file.find(name);
  require(tensor != nullptr, file.path(), " has no tensor ", name);
  return tensor->made ? py::object(py::make_tuple(tensor->made->packing, tensor->made->not_exact)) : py::object(py::none());
}

}  // namespace

std::string file_name(const py::str& name) {
  PyObject* bytes = nullptr;  // the name as bytes; PyUnicode_FSConverter() turns surrogate escapes back into the bytes that are not UTF-8
  if (!PyUnicode_FSConverter(name.ptr(), &bytes)) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(bytes);
}

void bind_files(py::module_& module) {
  py::class_<ModelFile, std::shared_ptr<ModelFile>>(module, "ModelFile")
      .def_property_readonly("path",
                             [](const ModelFile& f) { return py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(f.path().c_str())); })
      .def_property_readonly("kind", [](const ModelFile& f) { return f.kind() == files::Kind::gguf ? "gguf" : "safetensors"; })
      .def_property_readonly("size", &ModelFile::size_bytes)
      .def_property_readonly("architecture", &architecture)
      .def_property_readonly("tensors", &tensors)
      .def("metadata", &metadata)
      .def("get", &get, py::arg("key"))
      .def("read", &read, py::arg("name"), py::arg("offset") = 0, py::arg("count") = py::none())
      .def("format", &format, py::arg("name"))
      .def("packing", &packing, py::arg("name"))
      .def("keys", [](const ModelFile& file) {
        py::list out;
        for (const auto& [key, value] : file.metadata().entries()) {
          if (!std::holds_alternative<files::Nested>(value)) out.append(to_str(key));
        }
        return out;
      });
  const auto opens = [](std::shared_ptr<const ModelFile> (*open)(const std::string&)) {
    return [open](const py::str& name) {
      const std::string path = file_name(name);
      prepare_arrays();
      std::shared_ptr<const ModelFile> file;
      interruptible([&](const Cancel&) { file = open(path); });
      // pybind11 cannot hold a pointer to const, so the const is dropped; the bindings call only const methods
      return std::const_pointer_cast<ModelFile>(file);
    };
  };
  module.def("open_file", opens(&ModelFile::open), py::arg("path"));
  module.def("open_weights", opens(&ModelFile::open_weights), py::arg("path"));
  module.def("allow_links", [](const py::str& folder) { files::allow_links(file_name(folder)); }, py::arg("folder"));
  module.def("read_file", &read_file, py::arg("path"), py::arg("most"), py::arg("given") = false);

  py::class_<files::NewFile>(module, "NewFile")
      .def(py::init([](const py::str& path) { return std::make_unique<files::NewFile>(file_name(path)); }), py::arg("path"))
      .def("write", &write, py::arg("at"), py::arg("bytes"))
      .def("finish", [](files::NewFile& file) { interruptible([&](const Cancel&) { file.finish(); }); });
}

}  // namespace pumice::bindings
