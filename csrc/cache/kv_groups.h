// How layers share block tables. Layers with the same window form a KV group; a sequence has one block table
// per group. All groups take pages of one size from one pool, so memory moves freely between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/layout/kv_layout.h"

namespace llmi {

// name: float16, bfloat16, float32, int8 or fp8; throws Error(kInvalidArgument) for another.
KvType ParseKvType(const std::string& name);

// The K and V that a drafter keeps of each token, in addition to the model's (decisions/0006). num_kv_heads 0: there is no such drafter.
struct DraftKvShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // a multiple of 16
};

// The window of a layer that keeps no K and V.
constexpr int64_t kNoKv = -1;

struct KvGroup {
  int64_t window = 0;           // number of tokens that stay visible; 0: all
  std::vector<int> layers;      // model layers, in order
  int32_t pages_per_block = 1;  // pages that one logical block of this group takes
};

class KvGroups {
 public:
  // layer_windows [num_layers]; kNoKv: the layer is in no group. Each other layer has num_kv_heads heads of head_dim elements. block_size:
  // a multiple of 16. draft: it has a place in each block of the group without a window, as one more layer, draft_layer().
  KvGroups(const std::vector<int64_t>& layer_windows, int64_t num_kv_heads, int64_t head_dim, KvType type, int64_t block_size,
           DraftKvShape draft = {});

  const std::vector<KvGroup>& groups() const { return groups_; }
  int64_t block_size() const { return block_size_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t pages_per_block() const;  // pages of one logical block in all groups together
  int group_of_layer(int layer) const { return layer_places_[static_cast<size_t>(layer)].group; }
  bool has_draft() const { return draft_.num_kv_heads > 0; }
  int draft_layer() const { return static_cast<int>(layer_places_.size()) - 1; }

  // The part of the cache that belongs to `layer`, in an arena of pages.
  KvView View(int layer, uint8_t* arena) const;

  // The most pages that a lone sequence of num_tokens tokens holds at any time, in all groups together, if it is computed in chunks of at
  // most max_chunk tokens.
  int64_t MaxPages(int64_t num_tokens, int64_t max_chunk) const;

  // The first block of this group that the token after num_tokens tokens sees.
  int64_t FirstVisibleBlock(const KvGroup& group, int64_t num_tokens) const;

  // The KV bytes that one more token takes while the sequence is shorter than every window.
  int64_t BytesPerToken() const;

  // The drafter's part of num_slots slots; 0 without one.
  int64_t DraftBytes(int64_t num_slots) const;

 private:
  struct LayerPlace {
    int group;
    int32_t page_index;
    int64_t offset;
  };
  void PlaceLayers(const std::vector<int64_t>& layer_windows);

  std::vector<KvGroup> groups_;
  std::vector<LayerPlace> layer_places_;  // the drafter's is the last
  int64_t num_kv_heads_;
  int64_t head_dim_;
  KvType type_;
  int64_t block_size_;
  int64_t page_bytes_;
  DraftKvShape draft_;
};

}  // namespace llmi
