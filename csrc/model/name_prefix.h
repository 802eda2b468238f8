// Checkpoints whose tensor names do not begin with the family's "model.": those saved without the head, or as a part of a larger model.
#pragma once

#include <memory>
#include <string>

#include "io/tensor_file.h"

namespace llmi {

// The same tensors by the names "model.*" and "lm_head.*"; null if they have these names already. tensors must outlive the result.
// path: for messages. Throws Error(kUnsupportedModel) for layers wrapped by an adapter, Error(kModelFile) if several prefixes fit.
std::unique_ptr<TensorFile> WithModelPrefix(const std::string& path, const TensorFile& tensors);

}  // namespace llmi
