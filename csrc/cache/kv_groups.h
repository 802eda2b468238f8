// How layers share block tables. Layers with the same window, KV heads and head size form a KV group; a sequence has one block table per
// group. All groups take pages of one size from one pool, so memory moves freely between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/layout/kv_layout.h"
#include "kernels/layout/sparse_view.h"

namespace llmi {

// name: float16, bfloat16, float32, int8 or fp8; throws Error(kInvalidArgument) for another.
KvType ParseKvType(const std::string& name);

// The K and V that a drafter keeps of each token, in addition to the model's (decisions/0006). num_kv_heads 0: there is no such drafter.
struct DraftKvShape {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // a multiple of 16
  bool held = true;      // false: in the pages of another rank alone
};

// The window of a layer that keeps no K and V.
constexpr int64_t kNoKv = -1;

// The K and V that a layer keeps of each token.
struct KvLayer {
  int64_t window = 0;  // number of tokens that stay visible; 0: all; kNoKv: it keeps none, and has no heads
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // a multiple of 16
  int donor = -1;        // it keeps none, and reads those of this layer before it; -1: it has its own
  // KV heads that the pages of this rank hold; -1: all. What is planned and counted is of all.
  int64_t held_kv_heads = -1;
};
// One of each window, alike in all else.
std::vector<KvLayer> KvLayers(const std::vector<int64_t>& windows, int64_t num_kv_heads, int64_t head_dim);

struct KvGroup {
  int64_t window = 0;           // number of tokens that stay visible; 0: all
  std::vector<int> layers;      // model layers that keep K and V, in order
  int32_t pages_per_block = 1;  // pages that one logical block of this group takes
};

class KvGroups {
 public:
  // block_size: a multiple of 16. draft: it has a place in each block of the first group without a window, as one more layer,
  // draft_layer().
  KvGroups(const std::vector<KvLayer>& layers, KvType type, int64_t block_size, DraftKvShape draft = {});

  const std::vector<KvGroup>& groups() const { return groups_; }
  int64_t block_size() const { return block_size_; }
  int64_t page_bytes() const { return page_bytes_; }            // of all KV heads
  int64_t held_page_bytes() const { return held_page_bytes_; }  // of those that are here
  int64_t pages_per_block() const;                              // pages of one logical block in all groups together
  int group_of_layer(int layer) const { return layer_places_[static_cast<size_t>(layer)].group; }
  bool has_draft() const { return has_draft_; }
  int draft_layer() const { return static_cast<int>(layers_.size()) - 1; }
  // The share of a block of all groups that holds nothing, since a page holds whole layers.
  double WastedShare() const { return static_cast<double>(wasted_block_bytes_) / static_cast<double>(page_bytes_ * pages_per_block()); }

  // The part of the cache that belongs to `layer`, in an arena of pages.
  KvView View(int layer, uint8_t* arena) const;

  // The most pages that a lone sequence of num_tokens tokens holds at any time, in all groups together, if it is computed in chunks of at
  // most max_chunk tokens.
  int64_t MaxPages(int64_t num_tokens, int64_t max_chunk, const SparseView& view = {}) const;

  // The first block of this group that the token after num_tokens tokens sees in its window.
  int64_t FirstVisibleBlock(const KvGroup& group, int64_t num_tokens, const SparseView& view = {}) const;
  // The first blocks, which hold sinks: whatever the window has passed, a sequence keeps them.
  int64_t NumSinkBlocks(const SparseView& view) const { return (view.sinks + block_size_ - 1) / block_size_; }

  // The KV bytes that one more token takes while the sequence is shorter than every window.
  int64_t BytesPerToken() const;
  // The bytes that a layer reads of a token: its own, or its donor's.
  int64_t ReadBytes(int layer) const { return LayerBytes(static_cast<size_t>(layer), 1); }

  // The drafter's part of num_slots slots; 0 without one.
  int64_t DraftBytes(int64_t num_slots) const;

 private:
  struct LayerPlace {
    int group;
    int32_t page_index;
    int64_t offset;
  };
  int64_t LayerBytes(size_t layer, int64_t num_slots) const;
  void MakeGroups();
  int64_t FillPages(const KvGroup& group, int64_t page_bytes, std::vector<LayerPlace>* places) const;
  void PlaceLayers();
  void PlaceHeldHeads();

  std::vector<KvLayer> layers_;  // the drafter's is the last
  std::vector<KvGroup> groups_;
  std::vector<LayerPlace> layer_places_;
  bool has_draft_;
  KvType type_;
  int64_t block_size_;
  int64_t page_bytes_ = 0, held_page_bytes_ = 0;
  int64_t wasted_block_bytes_ = 0;
};

}  // namespace llmi
