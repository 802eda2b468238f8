// The one layout of the KV cache. Only kv_write, attention and page copies know it.
//
// A page holds `block_size` token slots of some layers. In a layer, each KV head has its K tiles, then its V tiles. A tile has 16 slots. A
// K tile is [head_dim][16], so that 16 positions fill a register and scores need no sum across lanes; a V tile is [16][head_dim].
//
// A bf16 cache stores pairs, which one instruction multiplies and adds: pairs of dimensions in K, [head_dim / 2][16][2], and pairs of slots
// in V, [8][head_dim][2].
//
// An element of an fp8 cache is e4m3, without a scale.
//
// An element of an int8 cache is code x scale, which is exact in fp32: a code has 7 bits, an fp16 scale 11. Each 16 values of one slot's
// head share a scale. The scales follow the tile's codes: those of K are [head_dim / 16][16], those of V [16][head_dim / 16].
#pragma once

#include <stdint.h>

#include "core/dtype.h"
#include "core/host_device.h"

namespace llmi {

constexpr int64_t kSlotsPerTile = 16;

// One layer's part of the cache.
struct KvView {
  uint8_t* base;  // the page arena
  int64_t page_bytes;
  int64_t layer_offset;     // offset of this layer in its page
  int32_t page_index;       // which page of a logical block holds this layer
  int32_t pages_per_block;  // block_table[logical * pages_per_block + page_index] is the page; -1: given back
  int32_t block_size;       // slots in a block, a multiple of 16
  int32_t num_kv_heads;
  int32_t head_dim;
  KvType type;
  int32_t group = 0;  // the KV group: layers with the same block tables
};

constexpr int64_t kKvScaleBlock = 16;
LLMI_HD static inline int64_t KvNumScales(int64_t head_dim) { return head_dim / kKvScaleBlock; }

// Bytes of one head of one slot's K or V.
LLMI_HD static inline int64_t KvHeadBytes(int64_t head_dim, KvType type) {
  return head_dim * KvTypeBytes(type) + (type == KvType::kInt8 ? 2 * KvNumScales(head_dim) : 0);
}

LLMI_HD static inline int64_t KvTileBytes(const KvView& kv) { return kSlotsPerTile * KvHeadBytes(kv.head_dim, kv.type); }

LLMI_HD static inline int64_t KvLayerBlockBytes(int64_t block_size, int64_t num_kv_heads, int64_t head_dim, KvType type) {
  return 2 * block_size * num_kv_heads * KvHeadBytes(head_dim, type);
}

// Indices of an element in its tile. row: the dimension; num_rows: head_dim. For scales, row is the scale and num_rows KvNumScales.
LLMI_HD static inline constexpr int64_t KvKeyIndex(bool in_pairs, int64_t lane, int64_t row) {
  return in_pairs ? (row / 2 * kSlotsPerTile + lane) * 2 + row % 2 : row * kSlotsPerTile + lane;
}
LLMI_HD static inline constexpr int64_t KvValueIndex(bool in_pairs, int64_t num_rows, int64_t lane, int64_t row) {
  return in_pairs ? (lane / 2 * num_rows + row) * 2 + lane % 2 : lane * num_rows + row;
}

// The fp16 scales of an int8 tile.
LLMI_HD static inline uint16_t* KvTileScales(const KvView& kv, uint8_t* tile) {
  return reinterpret_cast<uint16_t*>(tile + kSlotsPerTile * kv.head_dim);
}
LLMI_HD static inline const uint16_t* KvTileScales(const KvView& kv, const uint8_t* tile) {
  return reinterpret_cast<const uint16_t*>(tile + kSlotsPerTile * kv.head_dim);
}

// The K tile that holds `slot`; its V tile begins KvValueOffset() bytes after it.
LLMI_HD static inline uint8_t* KvTile(const KvView& kv, const int32_t* block_table, int64_t kv_head, int64_t slot) {
  const int64_t logical = slot / kv.block_size;
  const int64_t tiles_per_block = kv.block_size / kSlotsPerTile;
  const int64_t tile = kv_head * 2 * tiles_per_block + (slot % kv.block_size) / kSlotsPerTile;
  const int64_t page = block_table[logical * kv.pages_per_block + kv.page_index];
  return kv.base + page * kv.page_bytes + kv.layer_offset + tile * KvTileBytes(kv);
}

LLMI_HD static inline int64_t KvValueOffset(const KvView& kv) { return kv.block_size / kSlotsPerTile * KvTileBytes(kv); }

}  // namespace llmi
