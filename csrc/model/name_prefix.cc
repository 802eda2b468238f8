#include "model/name_prefix.h"

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr std::string_view kEmbedding = "embed_tokens.weight";
constexpr std::string_view kModel = "model.";
constexpr std::string_view kHead = "lm_head.";

class RenamedTensors : public TensorFile {
 public:
  explicit RenamedTensors(std::map<std::string, TensorView> tensors) : tensors_(std::move(tensors)) {}
  const TensorView* Find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  std::vector<const TensorView*> Tensors() const override {
    std::vector<const TensorView*> views;
    for (const auto& [name, view] : tensors_) views.push_back(&view);
    return views;
  }

 private:
  std::map<std::string, TensorView> tensors_;
};

// Throws if peft has wrapped a layer in an adapter.
void RefuseAdapters(const std::string& path, const std::vector<const TensorView*>& tensors) {
  for (const TensorView* view : tensors) {
    if (view->name.find(".base_layer.") == std::string::npos) continue;
    throw Error(
        ErrorKind::kUnsupportedModel,
        path + ": tensor '" + view->name +
            "' is wrapped by an adapter (LoRA): merge the adapter into the model first (merge_and_unload of peft) and load what that saves",
        view->name);
  }
}

}  // namespace

std::unique_ptr<TensorFile> WithModelPrefix(const std::string& path, const TensorFile& tensors) {
  const std::vector<const TensorView*> views = tensors.Tensors();
  RefuseAdapters(path, views);
  if (tensors.Find(std::string(kModel) + std::string(kEmbedding)) != nullptr) return nullptr;
  // The prefix of "model.language_model.embed_tokens.weight" is "model.language_model.".
  std::vector<std::string> prefixes;
  for (const TensorView* view : views) {
    const std::string_view name = view->name;
    if (name != kEmbedding && !name.ends_with("." + std::string(kEmbedding))) continue;
    prefixes.emplace_back(name.substr(0, name.size() - kEmbedding.size()));
  }
  if (prefixes.empty()) return nullptr;
  if (prefixes.size() > 1) {
    throw Error(ErrorKind::kModelFile,
                path + ": several tensors may be the embedding: '" + prefixes[0] + std::string(kEmbedding) + "' and '" + prefixes[1] +
                    std::string(kEmbedding) + "'",
                prefixes[0] + std::string(kEmbedding));
  }
  const std::string& prefix = prefixes[0];
  // The text before "model." is also before the head's name.
  const std::string outer = prefix.ends_with(kModel) ? prefix.substr(0, prefix.size() - kModel.size()) : "";
  std::map<std::string, TensorView> renamed;
  for (const TensorView* view : views) {
    std::string name = view->name;
    if (name.starts_with(prefix) && !(prefix.empty() && name.starts_with(kHead))) {
      name = std::string(kModel) + name.substr(prefix.size());
    } else if (name.starts_with(outer + std::string(kHead))) {
      name = name.substr(outer.size());
    }
    TensorView copy = *view;
    copy.name = name;
    if (!renamed.emplace(name, std::move(copy)).second) {
      throw Error(ErrorKind::kModelFile, path + ": tensor '" + view->name + "' has the place of another: '" + name + "'", view->name);
    }
  }
  return std::make_unique<RenamedTensors>(std::move(renamed));
}

}  // namespace llmi
