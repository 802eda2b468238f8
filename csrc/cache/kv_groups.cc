#include "cache/kv_groups.h"

#include <algorithm>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr int64_t kNoKvPageBytes = 64;

}  // namespace

KvType ParseKvType(const std::string& name) {
  if (name == "float16") return KvType::kF16;
  if (name == "float32") return KvType::kF32;
  if (name == "int8") return KvType::kInt8;
  if (name == "bfloat16") return KvType::kBF16;
  if (name == "fp8") return KvType::kF8;
  throw Error(ErrorKind::kInvalidArgument, "unknown KV cache type '" + name + "': float16, bfloat16, float32, int8 or fp8",
              "kv_cache_dtype");
}

std::vector<KvLayer> KvLayers(const std::vector<int64_t>& windows, int64_t num_kv_heads, int64_t head_dim) {
  std::vector<KvLayer> layers;
  for (const int64_t window : windows) layers.push_back({window, num_kv_heads, head_dim});
  return layers;
}

KvGroups::KvGroups(const std::vector<KvLayer>& layers, KvType type, int64_t block_size, DraftKvShape draft)
    : layers_(layers), has_draft_(draft.num_kv_heads > 0), type_(type), block_size_(block_size) {
  CheckArgument(block_size > 0 && block_size % kSlotsPerTile == 0, "block_size must be a positive multiple of 16");
  CheckArgument(!layers.empty(), "a model has at least one layer");
  if (has_draft()) layers_.push_back({0, draft.num_kv_heads, draft.head_dim, -1, draft.held ? -1 : 0});
  MakeGroups();
  PlaceLayers();
}

int64_t KvGroups::LayerBytes(size_t layer, int64_t num_slots) const {
  const KvLayer& shape = layers_[layer];
  return KvLayerBlockBytes(num_slots, shape.num_kv_heads, shape.head_dim, type_);
}

int64_t KvGroups::DraftBytes(int64_t num_slots) const { return has_draft() ? LayerBytes(layers_.size() - 1, num_slots) : 0; }

void KvGroups::MakeGroups() {
  layer_places_.assign(layers_.size(), {-1, 0, 0});
  for (size_t i = 0; i < layers_.size(); ++i) {
    const KvLayer& layer = layers_[i];
    if (layer.donor >= 0 || layer.window == kNoKv) continue;
    const bool is_draft = has_draft() && i + 1 == layers_.size();
    const auto found = std::ranges::find_if(groups_, [&](const KvGroup& group) {
      const KvLayer& other = layers_[static_cast<size_t>(group.layers[0])];
      const bool same_heads = other.num_kv_heads == layer.num_kv_heads && other.head_dim == layer.head_dim;
      return group.window == layer.window && (same_heads || is_draft);
    });
    layer_places_[i].group = static_cast<int>(found - groups_.begin());
    if (found == groups_.end()) groups_.emplace_back().window = layer.window;
    groups_[static_cast<size_t>(layer_places_[i].group)].layers.push_back(static_cast<int>(i));
  }
}

// Fills pages with the layers of a group, in order, and returns how many pages that takes. places: null, or where each layer's goes.
int64_t KvGroups::FillPages(const KvGroup& group, int64_t page_bytes, std::vector<LayerPlace>* places) const {
  int64_t page = 0;
  int64_t end = 0;  // of what the page holds
  for (const int layer : group.layers) {
    const int64_t bytes = LayerBytes(static_cast<size_t>(layer), block_size_);
    if (end + bytes > page_bytes) {
      ++page;
      end = 0;
    }
    if (places != nullptr) {
      LayerPlace& place = (*places)[static_cast<size_t>(layer)];
      place.page_index = static_cast<int32_t>(page);
      place.offset = end;
    }
    end += bytes;
  }
  return page + 1;
}

// Of the sizes of a page that some first layers of a group fill, the one that wastes the least of a block of all groups; of equal ones the
// largest. A layer is never cut.
void KvGroups::PlaceLayers() {
  // Sequences of a model without attention have blocks, too, by which the prefix tree knows them.
  if (groups_.empty()) {
    groups_.emplace_back();
    page_bytes_ = held_page_bytes_ = kNoKvPageBytes;
    return;
  }
  int64_t held = 0;
  int64_t largest = 0;
  std::vector<int64_t> sizes;
  for (const KvGroup& group : groups_) {
    int64_t size = 0;
    for (const int layer : group.layers) {
      const int64_t bytes = LayerBytes(static_cast<size_t>(layer), block_size_);
      largest = std::max(largest, bytes);
      sizes.push_back(size += bytes);
    }
    held += size;
  }
  std::ranges::sort(sizes);
  for (const int64_t size : sizes) {
    if (size < largest || size == page_bytes_) continue;
    int64_t pages = 0;
    for (const KvGroup& group : groups_) pages += FillPages(group, size, nullptr);
    const int64_t wasted = pages * size - held;
    if (page_bytes_ > 0 && wasted > wasted_block_bytes_) continue;
    page_bytes_ = size;
    wasted_block_bytes_ = wasted;
  }
  for (KvGroup& group : groups_) group.pages_per_block = static_cast<int32_t>(FillPages(group, page_bytes_, &layer_places_));
  PlaceHeldHeads();
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].donor >= 0) layer_places_[i] = layer_places_[static_cast<size_t>(layers_[i].donor)];
  }
}

// The same pages with the heads that are here alone.
void KvGroups::PlaceHeldHeads() {
  held_page_bytes_ = page_bytes_;
  if (std::ranges::all_of(layers_, [](const KvLayer& layer) { return layer.held_kv_heads < 0; })) return;
  held_page_bytes_ = kNoKvPageBytes;  // at least: a rank may have no head
  for (const KvGroup& group : groups_) {
    int32_t page = 0;
    int64_t end = 0;
    for (const int layer : group.layers) {
      const KvLayer& shape = layers_[static_cast<size_t>(layer)];
      LayerPlace& place = layer_places_[static_cast<size_t>(layer)];
      if (place.page_index != page) end = 0;
      page = place.page_index;
      place.offset = end;
      end += KvLayerBlockBytes(block_size_, shape.held_kv_heads < 0 ? shape.num_kv_heads : shape.held_kv_heads, shape.head_dim, type_);
      held_page_bytes_ = std::max(held_page_bytes_, end);
    }
  }
}

KvView KvGroups::View(int layer, uint8_t* arena) const {
  const LayerPlace& place = layer_places_[static_cast<size_t>(layer)];
  const KvLayer& shape = layers_[static_cast<size_t>(layer)];
  return {.base = arena,
          .page_bytes = held_page_bytes_,
          .layer_offset = place.offset,
          .page_index = place.page_index,
          .pages_per_block = groups_[static_cast<size_t>(place.group)].pages_per_block,
          .block_size = static_cast<int32_t>(block_size_),
          .num_kv_heads = static_cast<int32_t>(shape.held_kv_heads < 0 ? shape.num_kv_heads : shape.held_kv_heads),
          .head_dim = static_cast<int32_t>(shape.head_dim),
          .type = type_,
          .group = place.group};
}

int64_t KvGroups::pages_per_block() const {
  int64_t pages = 0;
  for (const KvGroup& group : groups_) pages += group.pages_per_block;
  return pages;
}

int64_t KvGroups::MaxPages(int64_t num_tokens, int64_t max_chunk, const SparseView& view) const {
  int64_t pages = 0;
  for (const KvGroup& group : groups_) {
    int64_t blocks = (num_tokens + block_size_ - 1) / block_size_;
    // With a window: the tokens that it sees, one chunk, and a block at either end that these fill in part.
    const int64_t window = view.streams() ? view.recent : group.window;
    if (window > 0) blocks = std::min(blocks, (window + max_chunk + block_size_ - 1) / block_size_ + 2 + NumSinkBlocks(view));
    pages += blocks * group.pages_per_block;
  }
  return pages;
}

int64_t KvGroups::FirstVisibleBlock(const KvGroup& group, int64_t num_tokens, const SparseView& view) const {
  // The next token has position num_tokens and sees the positions from num_tokens + 1 - window on.
  const int64_t window = view.streams() ? view.recent : group.window;
  return window == 0 ? 0 : std::max<int64_t>(0, num_tokens + 1 - window) / block_size_;
}

int64_t KvGroups::BytesPerToken() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < layers_.size(); ++i) bytes += layers_[i].donor < 0 ? LayerBytes(i, 1) : 0;
  return bytes;
}

}  // namespace llmi
