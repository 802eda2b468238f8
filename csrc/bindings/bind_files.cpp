// Files of models: what they hold, and what a model of their config is.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "core/errors.h"
#include "core/utf8.h"
#include "engine/options.h"
#include "engine/sizing.h"
#include "io/gguf.h"
#include "io/model_files.h"
#include "io/safetensors.h"
#include "model/checkpoints/tensor_list.h"
#include "model/file_kind.h"
#include "model/kv_layers.h"
#include "model/loader.h"
#include "model/workspace.h"
#include "model/mixer.h"

namespace py = pybind11;

namespace llmi {
namespace {

// Text from bytes; each byte that is not valid UTF-8 becomes U+FFFD.
py::str Text(std::string_view bytes) {
  PyObject* text = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

// Texts as bytes by an alphabet that has one character for each byte. A character outside it becomes its own UTF-8 bytes.
py::list AlphabetBytes(const py::list& texts, const std::map<uint32_t, uint8_t>& alphabet) {
  std::vector<int16_t> byte_of(alphabet.empty() ? 0 : alphabet.rbegin()->first + 1, -1);
  for (const auto& [character, byte] : alphabet) byte_of[character] = byte;
  py::list result(texts.size());
  std::string bytes;
  for (size_t i = 0; i < texts.size(); ++i) {
    PyObject* text = py::handle(texts[i]).ptr();
    if (!PyUnicode_Check(text)) throw py::type_error("alphabet_bytes takes a list of str");
    const int kind = PyUnicode_KIND(text);
    const void* characters = PyUnicode_DATA(text);
    bytes.clear();
    for (Py_ssize_t at = 0; at < PyUnicode_GET_LENGTH(text); ++at) {
      const Py_UCS4 character = PyUnicode_READ(kind, characters, at);
      if (character < byte_of.size() && byte_of[character] >= 0) {
        bytes.push_back(static_cast<char>(byte_of[character]));
      } else {
        const auto alone = py::reinterpret_steal<py::str>(PyUnicode_FromOrdinal(static_cast<int>(character)));
        bytes += alone.cast<std::string>();
      }
    }
    result[i] = py::bytes(bytes);
  }
  return result;
}

py::object ToPython(const GgufValue& value) {
  using Kind = GgufValue::Kind;
  switch (value.kind) {
    case Kind::kInteger: return py::int_(value.integer);
    case Kind::kNumber: return py::float_(value.number);
    case Kind::kBool: return py::bool_(value.integer != 0);
    case Kind::kString: return Text(value.string);
    case Kind::kIntegerArray: return py::cast(value.integers);
    case Kind::kBoolArray: {
      py::list list(value.integers.size());
      for (size_t i = 0; i < value.integers.size(); ++i) list[i] = py::bool_(value.integers[i] != 0);
      return list;
    }
    case Kind::kNumberArray: return py::cast(value.numbers);
    case Kind::kStringArray: {
      py::list list(value.strings.size());
      for (size_t i = 0; i < value.strings.size(); ++i) list[i] = Text(value.strings[i]);
      return list;
    }
  }
  return py::none();
}

const std::vector<std::string_view>& Strings(const GgufFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end() || found->second.kind != GgufValue::Kind::kStringArray) {
    throw Error(ErrorKind::kModelFile, key + ": missing, or not a list of strings", key);
  }
  return found->second.strings;
}

// {index: string} of the strings of a list that occur in `text`. joined: without their first space.
py::dict Occurring(const GgufFile& file, const std::string& key, const std::string& text, bool joined) {
  py::dict found;
  std::string whole;
  const std::vector<std::string_view>& strings = Strings(file, key);
  for (size_t i = 0; i < strings.size(); ++i) {
    std::string_view sought = strings[i];
    if (const size_t at = joined ? sought.find(' ') : std::string_view::npos; at != std::string_view::npos) {
      whole.assign(sought.substr(0, at)).append(sought.substr(at + 1));
      sought = whole;
    }
    if (text.find(sought) != std::string::npos) found[py::int_(i)] = Text(strings[i]);
  }
  return found;
}

struct PyVocabularyFault {
  std::string key;  // of the metadata
  std::string problem;
};

// The first token that is not valid UTF-8 or occurs twice; with merges, else the first merge that occurs twice or is not two tokens that
// make a third. None: the vocabulary is sound.
std::optional<PyVocabularyFault> VocabularyFault(const GgufFile& file, bool with_merges) {
  const std::string tokens_key = "tokenizer.ggml.tokens", merges_key = "tokenizer.ggml.merges";
  const std::vector<std::string_view>& tokens = Strings(file, tokens_key);
  std::unordered_map<std::string_view, size_t> known;
  known.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!IsUtf8(tokens[i])) return PyVocabularyFault{tokens_key, "token " + std::to_string(i) + " is not valid UTF-8"};
    if (tokens[i].empty()) continue;  // an id without a text
    const auto [place, is_new] = known.emplace(tokens[i], i);
    if (!is_new)
      return PyVocabularyFault{tokens_key, "tokens " + std::to_string(place->second) + " and " + std::to_string(i) + " are the same text"};
  }
  if (!with_merges) return std::nullopt;
  const std::vector<std::string_view>& merges = Strings(file, merges_key);
  std::unordered_set<uint64_t> seen;  // pairs of ids
  seen.reserve(merges.size());
  std::string whole;
  for (const std::string_view merge : merges) {
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos) return PyVocabularyFault{merges_key, "a merge is not two tokens"};
    whole.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto left = known.find(merge.substr(0, space)), right = known.find(merge.substr(space + 1));
    if (left == known.end() || right == known.end() || !known.contains(whole)) {
      return PyVocabularyFault{merges_key, "a merge has a part or a whole that is no token"};
    }
    if (!seen.insert(uint64_t{left->second} << 32 | right->second).second) return PyVocabularyFault{merges_key, "a merge stands twice"};
  }
  return std::nullopt;
}

struct PyTensorInfo {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t num_bytes;
  uint64_t stored_bytes;
  uint64_t unpacked_bytes;
  std::string stored_as;
};

std::vector<PyTensorInfo> TensorList(const TensorFile& file) {
  std::vector<PyTensorInfo> list;
  for (const TensorView* view : file.Tensors()) {
    const char* dtype = Info(view->dtype).name;
    list.push_back({view->name, dtype, view->shape, view->num_bytes, view->num_bytes, UnpackedSize(*view), dtype});
  }
  return list;
}

std::vector<PyTensorInfo> ModelTensors(const ModelFiles& files, const std::string& quantization) {
  const GilReleased release;
  std::vector<PyTensorInfo> list;
  for (const ListedTensor& tensor : ListTensors(files, quantization)) {
    list.push_back({tensor.name, Info(tensor.dtype).name, tensor.shape, tensor.num_bytes, tensor.stored_bytes, tensor.unpacked_bytes,
                    tensor.stored_as});
  }
  return list;
}

// The values of a tensor of model_tensors, in its shape.
py::array_t<float> TensorValues(const ModelFiles& files, const std::string& quantization, const std::string& name) {
  NamedValues tensor;
  {
    const GilReleased release;
    tensor = ReadTensor(files, quantization, name);
  }
  auto* owned = new std::vector<float>(std::move(tensor.values));
  const py::capsule owner(owned, [](void* pointer) { delete static_cast<std::vector<float>*>(pointer); });
  const std::vector<py::ssize_t> shape(tensor.shape.begin(), tensor.shape.end());
  return py::array_t<float>(shape, owned->data(), owner);
}

// The values of a list of whole numbers in a drafter's file; None if there is no such tensor.
std::optional<std::vector<int64_t>> Integers(const ModelFiles& files, const std::string& name) {
  const TensorView* view = files.tensors().Find(name);
  if (view == nullptr) return std::nullopt;
  const uint64_t bytes = Info(view->dtype).block_bytes;
  const bool is_integer = view->dtype == DType::kI32 || view->dtype == DType::kI64 || view->dtype == DType::kU8;
  if (!is_integer || view->shape.size() != 1) {
    throw Error(ErrorKind::kModelFile, files.path() + ": tensor '" + name + "' must be a list of I32, I64 or BOOL", name);
  }
  std::vector<uint8_t> stored(view->num_bytes);
  view->Read(0, stored.size(), stored.data());
  std::vector<int64_t> values(view->shape[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t* from = stored.data() + i * bytes;
    if (view->dtype == DType::kU8) values[i] = *from;
    if (view->dtype == DType::kI64) std::memcpy(&values[i], from, sizeof(int64_t));
    if (view->dtype == DType::kI32) {
      int32_t value = 0;
      std::memcpy(&value, from, sizeof(value));
      values[i] = value;
    }
  }
  return values;
}

py::dict SpecNumbers(const ModelSpec& spec) {
  py::dict dict;
  dict["architecture"] = spec.family;
  dict["num_layers"] = spec.num_layers();
  dict["hidden_size"] = spec.hidden_size;
  dict["num_heads"] = spec.num_heads;
  dict["num_kv_heads"] = spec.num_kv_heads;
  dict["head_dim"] = spec.head_dim;
  dict["padded_head_dim"] = PaddedHeadDim(spec.head_dim);
  dict["vocab_size"] = spec.vocab_size;
  dict["max_position"] = spec.max_position;
  dict["tied_embeddings"] = spec.tied_head();
  dict["embedding"] = spec.embedding.weight.name;
  std::vector<int64_t> windows, sizes, heads, kv_heads, head_dims;
  std::vector<bool> gated;
  for (const LayerSpec& layer : spec.layers) {
    sizes.push_back(layer.mlp.size);
    gated.push_back(layer.mlp.gated);
    if (!layer.has_attention()) continue;
    windows.push_back(layer.attention.window);
    heads.push_back(layer.attention.num_heads);
    kv_heads.push_back(layer.attention.kv_donor < 0 ? layer.attention.num_kv_heads : 0);
    head_dims.push_back(layer.attention.padded_head_dim());
  }
  dict["windows"] = windows;  // of layers with attention
  dict["layer_heads"] = heads;
  dict["latent_rank"] = spec.layers[0].attention.latent.rank;
  dict["layer_kv_heads"] = kv_heads;
  dict["layer_head_dims"] = head_dims;
  dict["state_bytes"] = StateLayout(spec).sizes().slot_bytes;
  dict["kv_wasted_share"] = KvGroups(KvLayersOf(spec), KvType::kF16, 16).WastedShare();
  dict["mlp_sizes"] = sizes;
  dict["mlp_gated"] = gated;
  return dict;
}

// The metadata of a GGUF model for the reader of its family; None for a directory.
py::object ModelFields(const ModelFiles& files) {
  if (files.gguf() == nullptr) return py::none();
  RequireModel(*files.gguf());
  constexpr size_t kMostListed = 4096;  // enough for a list of layers
  py::dict fields;
  for (const auto& [key, value] : files.gguf()->metadata()) {
    const size_t size = std::max({value.integers.size(), value.numbers.size(), value.strings.size()});
    if (!key.starts_with("tokenizer.") && size <= kMostListed) fields[Text(key)] = ToPython(value);
  }
  return fields;
}

using File = std::shared_ptr<const InputFile>;

void RegisterOpenFiles(py::module_& module) {
  py::class_<InputFile, std::shared_ptr<InputFile>>(module, "InputFile", "A regular file that stays open. Raises CoreError.")
      .def(py::init<const std::string&>(), py::arg("path"), py::call_guard<GilReleased>())
      .def_property_readonly("path", &InputFile::path)
      .def_property_readonly("name", &InputFile::name)
      .def_property_readonly("size", &InputFile::size)
      .def(
          "read",
          [](const InputFile& file, uint64_t offset, uint64_t num_bytes) {
            const uint64_t count = offset < file.size() ? std::min(num_bytes, file.size() - offset) : 0;
            py::bytes bytes(nullptr, count);
            char* data = PyBytes_AsString(bytes.ptr());
            const GilReleased release;
            file.Read(offset, count, data);
            return bytes;
          },
          py::arg("offset"), py::arg("num_bytes"), "Bytes from `offset` on, fewer where the file ends.")
      .def("difference", &InputFile::Difference, "What has changed in the file since it was opened, in words; empty if nothing has.")
      .def("check_unchanged", &InputFile::CheckUnchanged);
  py::class_<PyTensorInfo>(module, "TensorInfo")
      .def(py::init([](std::string name, const std::string& dtype, std::vector<uint64_t> shape, uint64_t num_bytes) {
             return PyTensorInfo{std::move(name), dtype, std::move(shape), num_bytes, num_bytes, 0, dtype};
           }),
           py::kw_only(), py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("num_bytes"))
      .def_readonly("name", &PyTensorInfo::name)
      .def_readonly("dtype", &PyTensorInfo::dtype)
      .def_readonly("shape", &PyTensorInfo::shape)
      .def_readonly("num_bytes", &PyTensorInfo::num_bytes)
      .def_readonly("stored_bytes", &PyTensorInfo::stored_bytes, "In the file: of a quantised matrix of a checkpoint, all its parts.")
      .def_readonly("stored_as", &PyTensorInfo::stored_as, "The type, or the scheme and form of an unpacked matrix of a checkpoint.")
      .def_readonly("unpacked_bytes", &PyTensorInfo::unpacked_bytes);
  py::class_<ModelFiles, std::shared_ptr<ModelFiles>>(module, "ModelFiles", "The open files of one model. Raises CoreError.")
      .def(py::init([](const std::string& path, const std::vector<std::shared_ptr<InputFile>>& weights,
                       const std::shared_ptr<InputFile>& config, const std::shared_ptr<InputFile>& index) {
             const GilReleased release;
             return std::make_shared<ModelFiles>(path, std::vector<File>(weights.begin(), weights.end()), config, index);
           }),
           py::arg("path"), py::arg("weights"), py::arg("config"), py::arg("index"))
      .def(py::init<const std::string&>(), py::arg("path"), "A GGUF file, or a directory with config.json and model.safetensors.")
      .def_property_readonly(
          "gguf", [](const ModelFiles& files) { return std::const_pointer_cast<GgufFile>(files.gguf()); }, "None for a directory.")
      .def_property_readonly("path", &ModelFiles::path)
      .def_property_readonly(
          "config", [](const ModelFiles& files) { return std::const_pointer_cast<InputFile>(files.config_file()); },
          "The open config.json; None for a GGUF file.")
      .def("integers", &Integers, py::arg("name"), py::call_guard<GilReleased>(),
           "The values of a tensor [n] of I32, I64 or BOOL; None if there is no such tensor.")
      .def("tensors", [](const ModelFiles& files) { return TensorList(files.tensors()); });
  py::implicitly_convertible<std::string, ModelFiles>();
}

void RegisterGguf(py::module_& module) {
  py::class_<PyVocabularyFault>(module, "VocabularyFault")
      .def_readonly("key", &PyVocabularyFault::key)
      .def_readonly("problem", &PyVocabularyFault::problem);
  py::class_<GgufFile, std::shared_ptr<GgufFile>>(module, "GgufFile", "Metadata and tensor list of a GGUF file.")
      .def(py::init([](const std::string& path) {
             return std::make_shared<GgufFile>(std::vector<File>{std::make_shared<const InputFile>(path)});
           }),
           py::arg("path"))
      .def(
          "metadata",
          [](const GgufFile& file, const std::set<std::string>& without) {
            py::dict dict;
            for (const auto& [key, value] : file.metadata()) {
              if (!without.contains(key)) dict[py::str(key)] = ToPython(value);
            }
            return dict;
          },
          py::arg("without") = std::set<std::string>(), "All metadata except these keys.")
      .def(
          "text",
          [](const GgufFile& file, const std::string& key) {
            const auto found = file.metadata().find(key);
            const bool is_text = found != file.metadata().end() && found->second.kind == GgufValue::Kind::kString;
            return is_text ? Text(found->second.string) : py::str();
          },
          py::arg("key"), "The string of this key; empty if there is none.")
      .def(
          "strings",
          [](const GgufFile& file, const std::string& key) {
            Strings(file, key);
            return ToPython(file.metadata().at(key));
          },
          py::arg("key"), "The list of strings of this key. Raises CoreError if there is none.")
      .def("occurring", &Occurring, py::arg("key"), py::arg("text"), py::arg("joined") = false,
           "{index: string} of the strings of a list that occur in `text`; joined: without their first space.")
      .def("vocabulary_fault", &VocabularyFault, py::arg("with_merges"), py::call_guard<GilReleased>(),
           "The first token or merge that is not sound; None if all are.")
      .def("tensors", [](const GgufFile& file) { return TensorList(file); });
}

}  // namespace

void RegisterFiles(py::module_& module) {
  RegisterOpenFiles(module);
  RegisterGguf(module);
  module.def("alphabet_bytes", &AlphabetBytes, py::arg("texts"), py::arg("alphabet"),
             "Texts as bytes by an alphabet that has one character for each byte. A character outside it becomes its own UTF-8 bytes.");
  module.def(
      "read_safetensors", [](const std::string& path) { return TensorList(SafetensorsFiles({std::make_shared<const InputFile>(path)})); },
      py::arg("path"));
  module.def("read_shard_index", &ReadShardIndex, py::arg("file"), "{tensor: file} by name.");
  module.def("model_fields", &ModelFields, py::arg("files"),
             "A GGUF model's metadata, without the tokenizer's and long lists; None for a directory. Raises CoreError for a file of "
             "another kind.");
  module.def(
      "model_tensors", &ModelTensors, py::arg("files"), py::arg("quantization") = "",
      "The tensors as they are loaded: each quantised matrix of a checkpoint is one tensor. Reads no values but scales. quantization: "
      "that of the model's spec.");
  module.def("tensor_values", &TensorValues, py::arg("files"), py::arg("quantization"), py::arg("name"),
             "The values of a tensor of model_tensors in its shape, as fp32.");
  module.def(
      "spec_numbers", [](const std::string& spec, const std::string& source) { return SpecNumbers(ParseSpec(spec, source)); },
      py::arg("spec"), py::arg("source"), "The sizes of a model's spec, which is JSON; source: its name in errors.");
  module.def(
      "expected_tensors",
      [](const std::string& spec, const std::string& source) {
        py::dict shapes;
        for (const ExpectedTensor& tensor : ExpectedTensors(ParseSpec(spec, source))) shapes[py::str(tensor.name)] = tensor.shape;
        return shapes;
      },
      py::arg("spec"), py::arg("source"), "Shapes of the tensors that a model of this spec has, by name.");
  module.def(
      "workspace_bytes",
      [](const std::string& spec_text, const std::string& source, int64_t num_rows, int activation_bits) {
        const ModelSpec spec = ParseSpec(spec_text, source);
        return Workspace::Bytes(spec, num_rows, LogitsRowsAtOnce(spec.vocab_size, false), HasTwoBytes(activation_bits), false);
      },
      py::arg("spec"), py::arg("source"), py::arg("num_rows"), py::arg("activation_bits"),
      "Memory that steps of `num_rows` rows need on the host, besides weights and cache.");
}

}  // namespace llmi
