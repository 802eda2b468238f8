#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/loader.h"

namespace py = pybind11;

namespace llmi {
namespace {

py::object ToPython(const GgufValue& value) {
  using Kind = GgufValue::Kind;
  switch (value.kind) {
    case Kind::kInteger: return py::int_(value.integer);
    case Kind::kNumber: return py::float_(value.number);
    case Kind::kBool: return py::bool_(value.integer != 0);
    case Kind::kString: return py::bytes(value.string.data(), value.string.size());
    case Kind::kIntegerArray:
    case Kind::kBoolArray: return py::cast(value.integers);
    case Kind::kNumberArray: return py::cast(value.numbers);
    case Kind::kStringArray: {
      py::list list(value.strings.size());
      for (size_t i = 0; i < value.strings.size(); ++i) list[i] = py::bytes(value.strings[i].data(), value.strings[i].size());
      return list;
    }
  }
  return py::none();
}

py::list TensorList(const TensorFile& file) {
  py::list list;
  for (const TensorView* view : file.Tensors()) {
    list.append(py::make_tuple(view->name, Info(view->dtype).name, view->shape, view->num_bytes));
  }
  return list;
}

py::dict ConfigDict(const ModelConfig& config) {
  py::dict dict;
  dict["architecture"] = config.architecture;
  dict["num_layers"] = config.num_layers;
  dict["hidden_size"] = config.hidden_size;
  dict["num_heads"] = config.num_heads;
  dict["num_kv_heads"] = config.num_kv_heads;
  dict["head_dim"] = config.head_dim;
  dict["intermediate_size"] = config.intermediate_size;
  dict["vocab_size"] = config.vocab_size;
  dict["max_position"] = config.max_position;
  dict["tied_embeddings"] = config.tied_embeddings;
  std::vector<int64_t> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  dict["windows"] = windows;
  return dict;
}

}  // namespace

void RegisterFiles(py::module_& module) {
  py::class_<GgufFile>(module, "GgufFile", "Metadata and tensor list of a GGUF file.")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def(
          "metadata",
          [](const GgufFile& file) {
            py::dict dict;
            for (const auto& [key, value] : file.metadata()) dict[py::str(key)] = ToPython(value);
            return dict;
          },
          "All metadata; strings as bytes.")
      .def("tensors", [](const GgufFile& file) { return TensorList(file); }, "[(name, dtype, shape, num_bytes)].");
  module.def("read_safetensors", [](const std::string& path) { return TensorList(SafetensorsFile(path)); }, py::arg("path"));
  module.def(
      "read_model_directory", [](const std::string& path) { return TensorList(*SafetensorsFile::OpenDirectory(path)); }, py::arg("path"));
  module.def(
      "load_config", [](const std::string& path) { return ConfigDict(LoadConfig(path)); }, py::arg("path"),
      "The decoder's numbers, without reading weights.");
}

}  // namespace llmi
