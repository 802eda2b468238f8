// Where the results of linear go: up to four parts of one launch, whose tiles of 16 columns follow each other.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "kernels/layout/packed_weights.h"

namespace llmi::cuda {

constexpr int kMostParts = 4;
constexpr unsigned kTileColumns = kTileRows;  // of out

// A tile of a part.
struct TileOutput {
  const uint8_t* weights;
  const float* bias;  // of the part; null: none
  float* out;         // of the part
  unsigned first_column;
  unsigned num_columns;  // of the part

  // column: of the part.
  LLMI_HD float Biased(unsigned column, float value) const { return bias != nullptr ? value + bias[column] : value; }
};

struct LinearOutput {
  static constexpr int kGroupTiles = 1;  // that a block takes one after the other

  struct Part {
    const uint8_t* weights;
    const float* bias;
    float* out;  // of the part's first column
    unsigned num_columns;
    int first_tile;
  };

  PackedView weights;  // the first part's; the type, its table and the number of columns are those of all parts
  Part parts[kMostParts] = {};
  int num_tiles = 0;  // of all parts
  int num_parts = 0;
  int num_rows;
  unsigned out_stride;
  bool accumulate;

  LinearOutput(const PackedView& first, int64_t rows, int64_t stride, bool adds)
      : weights(first), num_rows(static_cast<int>(rows)), out_stride(static_cast<unsigned>(stride)), accumulate(adds) {}
  bool IsFull() const { return num_parts == kMostParts; }
  void Add(const PackedView& part, const float* bias, float* out) {
    parts[num_parts++] = {part.data, bias, out, static_cast<unsigned>(part.num_rows), num_tiles};
    num_tiles += static_cast<int>(NumTiles(part.num_rows));
    for (int i = num_parts; i < kMostParts; ++i) parts[i].first_tile = num_tiles;  // those that are not there begin behind all tiles
  }

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    for (const Part& part : parts) {
      visit(part.weights);
      visit(part.bias);
      visit(part.out);
    }
  }

  // tile_bytes: of a tile of W.
  LLMI_HD TileOutput Tile(int index, int64_t tile_bytes) const {
    int number = 0;
    LLMI_UNROLL
    for (int i = 1; i < kMostParts; ++i) number += index >= parts[i].first_tile ? 1 : 0;
    const Part& part = parts[number];
    const int tile = index - part.first_tile;
    return {part.weights + tile * tile_bytes, part.bias, part.out, static_cast<unsigned>(tile) * kTileColumns, part.num_columns};
  }
  // What kernels of several kinds of output have in common: in GatedOutput these leave the values in the room until a group is complete.
  template <int kRows>
  struct Room {};
  template <int kRows>
  LLMI_HD void Keep(const TileOutput& tile, int /*index*/, int first_row, int row, int column, float value, Room<kRows>*) const {
    Store(tile, first_row + row, column, value);
  }
  template <typename Warp, int kRows>
  LLMI_HD void EndTile(const Warp&, int /*index*/, int /*first_row*/, Room<kRows>*) const {}

  // column: of the tile.
  LLMI_HD void Store(const TileOutput& tile, int row, int column, float value) const {
    const unsigned place = tile.first_column + static_cast<unsigned>(column);
    if (row >= num_rows || place >= tile.num_columns) return;
    float* to = tile.out + (uint64_t{static_cast<unsigned>(row)} * out_stride + place);
    value = tile.Biased(place, value);
    *to = accumulate ? *to + value : value;
  }
};

// Whether one launch may have both parts: its kernel knows one type.
inline bool GoTogether(const PackedView& a, const PackedView& b) {
  return a.type == b.type && a.in_chunks == b.in_chunks && a.table.low == b.table.low && a.table.high == b.table.high;
}

}  // namespace llmi::cuda
