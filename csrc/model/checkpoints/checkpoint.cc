#include "model/checkpoints/checkpoint.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/errors.h"

namespace llmi {
namespace {

using checkpoints::MatrixForm;
using checkpoints::ModuleParts;
using checkpoints::QuantizedMatrix;
using checkpoints::Scheme;

constexpr const char* kWeight = "weight";

// The length of "module." in "module.part" if the name ends with one of these parts, else 0.
size_t ModuleLength(std::string_view name, std::span<const char* const> parts, char separator = '.') {
  for (const std::string_view part : parts) {
    if (name.size() > part.size() + 1 && name.ends_with(part) && name[name.size() - part.size() - 1] == separator)
      return name.size() - part.size();
  }
  return 0;
}

// The quantised modules: those with a part of the scheme, and those whose weight is of a type that is no weight by itself.
std::map<std::string, ModuleParts> ModulesOf(const std::vector<const TensorView*>& views, const Scheme& scheme) {
  std::map<std::string, ModuleParts> modules;
  const char* const weight[] = {kWeight};
  for (const TensorView* view : views) {
    size_t length = ModuleLength(view->name, scheme.parts(), scheme.separator());
    if (length == 0 && IsCheckpointPart(view->dtype)) length = ModuleLength(view->name, weight);
    if (length == 0) continue;
    const std::string module = view->name.substr(0, length - 1);
    modules.try_emplace(module, module).first->second.Add(view->name.substr(length), view);
  }
  return modules;
}

}  // namespace

Checkpoint::Checkpoint(const TensorFile& stored, std::unique_ptr<Scheme> scheme, std::string method)
    : scheme_(std::move(scheme)), method_(std::move(method)), last_(std::make_shared<checkpoints::LastLoaded>()) {
  const std::vector<const TensorView*> views = stored.Tensors();
  std::map<std::string, ModuleParts> modules;
  if (scheme_ != nullptr) modules = ModulesOf(views, *scheme_);
  for (const TensorView* view : views) {
    const char* const weight[] = {kWeight};
    if (scheme_ != nullptr) {
      if (ModuleLength(view->name, scheme_->parts(), scheme_->separator()) > 0 || ModuleLength(view->name, scheme_->inert_parts()) > 0)
        continue;
      const size_t length = ModuleLength(view->name, weight);
      const auto found = length == 0 ? modules.end() : modules.find(view->name.substr(0, length - 1));
      if (found != modules.end()) {
        found->second.Add(kWeight, view);
        continue;
      }
    }
    tensors_.emplace(view->name, *view);
  }
  for (const auto& [name, parts] : modules) AddMatrix(parts);
  if (scheme_ != nullptr && modules.empty() && !views.empty()) {
    throw Error(ErrorKind::kModelFile, "the config has quantization_config, and no tensor is quantised", "quantization_config");
  }
}

void RequireWeights(const TensorView& view) {
  if (!IsCheckpointPart(view.dtype)) return;
  throw Error(ErrorKind::kUnsupportedModel,
              "tensor '" + view.name + "' has dtype " + Info(view.dtype).name + ", which llmi does not read in this place (it reads F32, " +
                  "F16, BF16; the other types are for parts of a quantised matrix as quantization_config in config.json describes it)",
              view.name);
}

void Checkpoint::AddMatrix(const ModuleParts& parts) {
  MatrixForm form = scheme_->Read(parts);
  form.name = scheme_->NameOf(parts.module());
  for (const auto& [part, view] : parts.all()) form.stored_bytes += view->num_bytes;
  auto matrix = std::make_unique<const QuantizedMatrix>(std::move(form), last_);
  const TensorView& view = matrix->view();
  tensors_.emplace(view.name, view);
  matrices_.emplace(view.name, std::move(matrix));
}

const TensorView* Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<const TensorView*> Checkpoint::Tensors() const {
  std::vector<const TensorView*> views;
  for (const auto& [name, view] : tensors_) views.push_back(&view);
  return views;
}

uint64_t Checkpoint::StoredBytes(const std::string& name) const {
  const auto found = matrices_.find(name);
  return found != matrices_.end() ? found->second->stored_bytes() : tensors_.at(name).num_bytes;
}

std::unique_ptr<Checkpoint> OpenCheckpoint(const ModelFiles& files, const std::string& quantization) {
  if (quantization.empty()) return std::make_unique<Checkpoint>(files.tensors(), nullptr, "");
  const std::string& path = files.config_file() != nullptr ? files.config_file()->path() : files.path();
  const Json object = Json::Parse(quantization, path + ": quantization_config");
  std::string method = "an unnamed method";
  if (const Json* named = object.IsObject() ? object.Find("quant_method") : nullptr; named != nullptr) {
    method = named->AsString("quant_method");
  }
  std::unique_ptr<Scheme> scheme = checkpoints::ReadScheme({object, path, method});
  return std::make_unique<Checkpoint>(files.tensors(), std::move(scheme), std::move(method));
}

}  // namespace llmi
