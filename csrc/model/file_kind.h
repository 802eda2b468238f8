// What a GGUF file is, where it is no language model: an adapter, a projector of images, an importance matrix, a vocabulary.
#pragma once

#include "io/gguf.h"

namespace llmi {

// Throws Error(kUnsupportedModel) that says what the file is and what to do.
void RequireModel(const GgufFile& file);

}  // namespace llmi
