#include "model/file_kind.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace llmi {
namespace {

[[noreturn]] void Refuse(const GgufFile& file, const std::string& field, const std::string& what) {
  throw Error(ErrorKind::kUnsupportedModel, file.path() + ": " + what, field);
}

std::string Text(const GgufFile& file, const std::string& key) { return file.Has(key) ? file.String(key) : ""; }

}  // namespace

void RequireModel(const GgufFile& file) {
  const std::string type = Text(file, "general.type");
  const std::string architecture = Text(file, "general.architecture");
  const std::vector<const TensorView*> tensors = file.Tensors();
  const bool is_lora = std::any_of(tensors.begin(), tensors.end(), [](const TensorView* view) { return view->name.ends_with(".lora_a"); });
  if (type == "adapter" || is_lora) {
    Refuse(
        file, "general.type",
        "an adapter (LoRA), not a model: merge it into its base model first (llama-export-lora of llama.cpp, or merge_and_unload of peft)");
  }
  if (type == "mmproj" || architecture == "clip") {
    Refuse(file, "general.type", "a projector of images or sound (mmproj), not a language model: name the model's own GGUF file");
  }
  if (type == "imatrix" || architecture == "imatrix") {
    Refuse(file, "general.type", "an importance matrix (imatrix), which quantisers read, not a model: name the model's own GGUF file");
  }
  if (tensors.empty()) {
    Refuse(file, "tensor_count",
           "a vocabulary without weights (the file holds no tensor): Tokenizer(path) reads it, a model needs the whole file");
  }
  if (!type.empty() && type != "model") Refuse(file, "general.type", "general.type is '" + type.substr(0, 64) + "', not 'model'");
}

}  // namespace llmi
