// Blocks of the prefix cache as bytes, and back.
#include <algorithm>

#include "cache/kv_cache.h"
#include "core/errors.h"
#include "kernels/dispatch/transfer.h"

namespace llmi {

void KvCache::SaveBlocks(const std::string& identity, const std::string& label, std::function<void(int32_t)> save) {
  CheckInternal(prefix_tree_ != nullptr && states_ == nullptr, "blocks are saved of a prefix cache without states");
  identity_ = identity;
  label_ = label;
  save_ = std::move(save);
  std::vector<std::pair<int, int>> layers;  // and their groups
  for (size_t g = 0; g < groups_.groups().size(); ++g) {
    for (const int layer : groups_.groups()[g].layers) {
      if (!groups_.has_draft() || layer != groups_.draft_layer()) layers.emplace_back(layer, static_cast<int>(g));
    }
  }
  std::sort(layers.begin(), layers.end());
  for (const auto& [layer, group] : layers) {
    const KvView view = View(layer);
    const int64_t num_bytes = KvLayerBlockBytes(view.block_size, view.num_kv_heads, view.head_dim, view.type);
    SavedRange* last = saved_ranges_.empty() ? nullptr : &saved_ranges_.back();
    if (last != nullptr && last->group == group && last->page_index == view.page_index &&
        last->offset + last->num_bytes == view.layer_offset) {
      last->num_bytes += num_bytes;
    } else {
      saved_ranges_.push_back({group, view.page_index, view.layer_offset, num_bytes, saved_groups_.size()});
    }
    saved_groups_.push_back(group);
  }
  prefix_tree_->KeepKeys(identity, [this](int32_t node) {
    if (!prefix_tree_->is_saved(node)) save_(node);
  });
}

// A sequence has found the blocks of a beginning.
void KvCache::SaveUsed(const KvSequence& sequence) {
  std::vector<int32_t> nodes;
  for (int32_t node = sequence.prefix_node; !prefix_tree_->is_root(node); node = prefix_tree_->Parent(node)) nodes.push_back(node);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) save_(*node);
}

SavedHeader KvCache::HeaderOf(int32_t node) const {
  SavedHeader header;
  header.identity = identity_;
  header.label = label_;
  int32_t root = prefix_tree_->Parent(node);
  header.parent = prefix_tree_->key(root);
  for (; !prefix_tree_->is_root(root); root = prefix_tree_->Parent(root)) ++header.index;
  header.root = prefix_tree_->key(root);
  const std::span<const int32_t> tokens = prefix_tree_->tokens(node);
  header.tokens.assign(tokens.begin(), tokens.end());
  std::vector<uint8_t> has_group;
  int64_t index = 0;
  for (const KvGroup& group : groups_.groups()) {
    bool has = true;
    for (int64_t i = 0; i < group.pages_per_block; ++i, ++index) has = has && prefix_tree_->page(node, index) >= 0;
    has_group.push_back(has ? 1 : 0);
  }
  for (const int group : saved_groups_) header.present.push_back(has_group[static_cast<size_t>(group)]);
  return header;
}

std::vector<uint8_t> KvCache::BytesOf(const SavedHeader& header, int32_t node) {
  std::vector<int64_t> first_pages;
  int64_t num_pages = 0;
  for (const KvGroup& group : groups_.groups()) {
    first_pages.push_back(num_pages);
    num_pages += group.pages_per_block;
  }
  std::vector<uint8_t> bytes = HeaderBytes(header);
  size_t at = bytes.size();
  for (const SavedRange& range : saved_ranges_) at += header.present[range.first_layer] != 0 ? static_cast<size_t>(range.num_bytes) : 0;
  const size_t end = std::exchange(at, bytes.size());
  bytes.resize(end);
  for (const SavedRange& range : saved_ranges_) {
    if (header.present[range.first_layer] == 0) continue;
    const int64_t page = prefix_tree_->page(node, first_pages[static_cast<size_t>(range.group)] + range.page_index);
    ToHost({.device = pool_.device()}, bytes.data() + at, pool_.arena() + page * pool_.page_bytes() + range.offset,
           static_cast<size_t>(range.num_bytes));
    at += static_cast<size_t>(range.num_bytes);
  }
  SealBlock(&bytes);
  return bytes;
}

SavedHeader KvCache::ExpectedHeader(std::span<const int32_t> token_ids, int64_t index, const PrefixKey& root,
                                    const PrefixKey& parent) const {
  const auto block_size = static_cast<size_t>(groups_.block_size());
  const std::span<const int32_t> tokens = token_ids.subspan(static_cast<size_t>(index) * block_size, block_size);
  return {identity_, label_, root, parent, index, {tokens.begin(), tokens.end()}, std::vector<uint8_t>(saved_groups_.size(), 1)};
}

std::vector<int32_t> KvCache::KnownPath(std::span<const int32_t> token_ids, const std::string& salt) const {
  const auto block_size = static_cast<size_t>(groups_.block_size());
  std::vector<int32_t> path;
  for (int32_t node = prefix_tree_->FindRoot(salt); node != PrefixTree::kNone;) {
    path.push_back(node);
    const size_t end = path.size() * block_size;
    node = end > token_ids.size() ? PrefixTree::kNone : prefix_tree_->Find(node, token_ids.data() + end - block_size);
  }
  return path;
}

bool KvCache::AppendSaved(KvSequence* sequence, const ParsedBlock& block, std::span<const int32_t> token_ids) {
  int64_t num_bytes = 0;
  for (const SavedRange& range : saved_ranges_) {
    const uint8_t present = block.header.present[range.first_layer];
    num_bytes += present != 0 ? range.num_bytes : 0;
  }
  // All layers of a group are there, or none.
  std::vector<uint8_t> has_group(groups_.groups().size(), 1);
  for (size_t i = 0; i < saved_groups_.size(); ++i) {
    if (block.header.present[i] == 0) has_group[static_cast<size_t>(saved_groups_[i])] = 0;
  }
  for (size_t i = 0; i < saved_groups_.size(); ++i) {
    if ((block.header.present[i] != 0) != (has_group[static_cast<size_t>(saved_groups_[i])] != 0)) return false;
  }
  if (num_bytes != static_cast<int64_t>(block.keys_values.size())) return false;
  if (!TryReserve(sequence, groups_.block_size(), Reclaim::kCacheOnly)) return false;
  const int64_t index = sequence->num_tokens / groups_.block_size();
  const uint8_t* from = block.keys_values.data();
  for (const SavedRange& range : saved_ranges_) {
    if (block.header.present[range.first_layer] == 0) continue;
    const auto group = static_cast<size_t>(range.group);
    const int64_t entry = index * groups_.groups()[group].pages_per_block + range.page_index;
    const int64_t page = sequence->tables[group][static_cast<size_t>(entry)];
    ToDevice({.device = pool_.device()}, pool_.arena() + page * pool_.page_bytes() + range.offset, from,
             static_cast<size_t>(range.num_bytes));
    from += range.num_bytes;
  }
  for (size_t g = 0; g < has_group.size(); ++g) {
    if (has_group[g] == 0) GiveBackGroup(sequence, g, index + 1);
  }
  Commit(sequence, groups_.block_size(), token_ids);
  prefix_tree_->SetSaved(sequence->prefix_node);
  return true;
}

}  // namespace llmi
