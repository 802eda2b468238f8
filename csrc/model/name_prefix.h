// Checkpoints whose tensor names have another beginning than the family's "model.": saved without the head, or from inside a larger model.
#pragma once

#include <memory>
#include <string>

#include "io/tensor_file.h"

namespace llmi {

// The same tensors by the names "model.*" and "lm_head.*"; null if they have these names already. tensors outlives it.
// path: for messages. Throws Error(kUnsupportedModel) for layers below an adapter, Error(kModelFile) if several beginnings fit.
std::unique_ptr<TensorFile> WithModelPrefix(const std::string& path, const TensorFile& tensors);

}  // namespace llmi
