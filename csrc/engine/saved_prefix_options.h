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
  // Blocks that engines hand over to each other: only those are written that another one asked for.
  bool hands_over = false;
  int64_t ask_from = 0;  // missing tokens from which on another engine is asked; 0: none is

  std::string option() const { return hands_over ? "kv_transfer_config" : "prefix_cache_dir"; }
};

}  // namespace llmi
