// A quantised checkpoint as plain tensors: what the file stores as codes, scales and zeros is one matrix under the name that it has in an
// unquantised model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/model_files.h"
#include "io/tensor_file.h"
#include "model/checkpoints/matrix.h"
#include "model/checkpoints/scheme.h"

namespace llmi {

class Checkpoint : public TensorFile {
 public:
  // stored: must outlive the checkpoint. scheme: null for a model that is not quantised.
  // Throws Error(kModelFile, kUnsupportedModel) naming the tensor that is missing, has another shape or type, or has no place.
  Checkpoint(const TensorFile& stored, std::unique_ptr<checkpoints::Scheme> scheme, std::string method);

  const TensorView* Find(const std::string& name) const override;
  std::vector<const TensorView*> Tensors() const override;

  // Bytes in the file of a tensor; of a quantised matrix, those of all its parts.
  uint64_t StoredBytes(const std::string& name) const;
  // The config's quant_method.
  const std::string& method() const { return method_; }
  bool IsQuantizedMatrix(const std::string& name) const { return matrices_.contains(name); }

 private:
  void AddMatrix(const checkpoints::ModuleParts& parts);

  std::unique_ptr<checkpoints::Scheme> scheme_;
  std::string method_;
  std::shared_ptr<checkpoints::LastLoaded> last_;
  std::map<std::string, std::unique_ptr<const checkpoints::QuantizedMatrix>> matrices_;
  std::map<std::string, TensorView> tensors_;
};

// Throws Error(kUnsupportedModel) naming a tensor that has the type of a part of a quantised matrix.
void RequireWeights(const TensorView& view);

// The tensors of a model as plain ones. quantization: ModelSpec::quantization. files: must outlive the result.
// Throws Error(kModelFile, kUnsupportedModel).
std::unique_ptr<Checkpoint> OpenCheckpoint(const ModelFiles& files, const std::string& quantization);

}  // namespace llmi
