// Recognises GGUF files that are no language model: adapters, image projectors, importance matrices, vocabularies.
#pragma once

#include "io/gguf.h"

namespace llmi {

// Throws Error(kUnsupportedModel) if the file is no language model; the message says what it is and what to do.
void RequireModel(const GgufFile& file);

}  // namespace llmi
