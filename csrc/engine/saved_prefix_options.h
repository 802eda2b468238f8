// Where an engine keeps blocks of its prefix cache beyond its own life.
#pragma once

#include <cstdint>
#include <string>

namespace llmi {

struct SavedPrefixOptions {
  std::string directory;  // empty: they are not kept
  int64_t most_bytes = 0;
  std::string identity;  // of model, spec, arithmetic, type of cache, block size and layout (cache/saved_block.h)
  std::string label;     // the model's name
};

}  // namespace llmi
