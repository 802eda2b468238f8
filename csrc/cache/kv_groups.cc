#include "cache/kv_groups.h"

#include <algorithm>
#include <numeric>

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

KvGroups::KvGroups(const std::vector<int64_t>& layer_windows, int64_t num_kv_heads, int64_t head_dim, KvType type, int64_t block_size,
                   DraftKvShape draft)
    : num_kv_heads_(num_kv_heads), head_dim_(head_dim), type_(type), block_size_(block_size), draft_(draft) {
  CheckArgument(block_size > 0 && block_size % kSlotsPerTile == 0, "block_size must be a positive multiple of 16");
  CheckArgument(!layer_windows.empty(), "a model has at least one layer");
  std::vector<int64_t> windows = layer_windows;
  if (has_draft()) windows.push_back(0);
  PlaceLayers(windows);
}

int64_t KvGroups::DraftBytes(int64_t num_slots) const {
  return has_draft() ? KvLayerBlockBytes(num_slots, draft_.num_kv_heads, draft_.head_dim, type_) : 0;
}

void KvGroups::PlaceLayers(const std::vector<int64_t>& layer_windows) {
  const int64_t layer_bytes = KvLayerBlockBytes(block_size_, num_kv_heads_, head_dim_, type_);
  // A drafter that needs no more than one of the model's layers is placed as one. A larger one has a place at the end of each page.
  const bool draft_is_layer = DraftBytes(block_size_) <= layer_bytes;
  std::vector<int64_t> num_layers;  // by group, those that are placed as layers
  for (size_t layer = 0; layer < layer_windows.size(); ++layer) {
    if (layer_windows[layer] == kNoKv) continue;
    const auto found =
        std::find_if(groups_.begin(), groups_.end(), [&](const KvGroup& group) { return group.window == layer_windows[layer]; });
    const auto place = static_cast<size_t>(found - groups_.begin());
    if (found == groups_.end()) {
      groups_.emplace_back().window = layer_windows[layer];
      num_layers.push_back(0);
    }
    groups_[place].layers.push_back(static_cast<int>(layer));
    if (!has_draft() || draft_is_layer || layer + 1 < layer_windows.size()) ++num_layers[place];
  }
  layer_places_.assign(layer_windows.size(), {-1, 0, 0});
  // Sequences of a model without attention have blocks, too, by which the prefix tree knows them.
  if (groups_.empty()) {
    groups_.emplace_back();
    page_bytes_ = kNoKvPageBytes;
    return;
  }
  // The number of layers in a page divides the number of layers of every group, so a group's block is a whole number of pages.
  int64_t layers_per_page = 0;
  for (int64_t count : num_layers) layers_per_page = std::gcd(layers_per_page, count);
  page_bytes_ = layers_per_page * layer_bytes + (draft_is_layer ? 0 : DraftBytes(block_size_));
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].pages_per_block = std::max(1, static_cast<int32_t>(num_layers[g] / layers_per_page));
    for (size_t i = 0; i < groups_[g].layers.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      const bool at_end = index >= num_layers[g];
      layer_places_[static_cast<size_t>(groups_[g].layers[i])] = {static_cast<int>(g),
                                                                  at_end ? 0 : static_cast<int32_t>(index / layers_per_page),
                                                                  (at_end ? layers_per_page : index % layers_per_page) * layer_bytes};
    }
  }
}

KvView KvGroups::View(int layer, uint8_t* arena) const {
  const LayerPlace& place = layer_places_[static_cast<size_t>(layer)];
  const bool is_draft = has_draft() && layer == draft_layer();
  return {.base = arena,
          .page_bytes = page_bytes_,
          .layer_offset = place.offset,
          .page_index = place.page_index,
          .pages_per_block = groups_[static_cast<size_t>(place.group)].pages_per_block,
          .block_size = static_cast<int32_t>(block_size_),
          .num_kv_heads = static_cast<int32_t>(is_draft ? draft_.num_kv_heads : num_kv_heads_),
          .head_dim = static_cast<int32_t>(is_draft ? draft_.head_dim : head_dim_),
          .type = type_,
          .group = place.group};
}

int64_t KvGroups::pages_per_block() const {
  int64_t pages = 0;
  for (const KvGroup& group : groups_) pages += group.pages_per_block;
  return pages;
}

int64_t KvGroups::MaxPages(int64_t num_tokens, int64_t max_chunk) const {
  int64_t pages = 0;
  for (const KvGroup& group : groups_) {
    int64_t blocks = (num_tokens + block_size_ - 1) / block_size_;
    // With a window: the tokens that it sees, one chunk, and a block at either end that these fill in part.
    if (group.window > 0) blocks = std::min(blocks, (group.window + max_chunk + block_size_ - 1) / block_size_ + 2);
    pages += blocks * group.pages_per_block;
  }
  return pages;
}

int64_t KvGroups::FirstVisibleBlock(const KvGroup& group, int64_t num_tokens) const {
  // The next token has position num_tokens and sees the positions from num_tokens + 1 - window on.
  return group.window == 0 ? 0 : std::max<int64_t>(0, num_tokens + 1 - group.window) / block_size_;
}

int64_t KvGroups::BytesPerToken() const {
  const auto num_places = std::ranges::count_if(layer_places_, [](const LayerPlace& place) { return place.group >= 0; });
  const int64_t num_layers = num_places - (has_draft() ? 1 : 0);
  return KvLayerBlockBytes(1, num_kv_heads_, head_dim_, type_) * num_layers + DraftBytes(1);
}

}  // namespace llmi
