// What becomes of gate and up: act(gate) * up, and its codes, in the launch that multiplies them.
//
// A block goes through groups of four tiles: two of gate, then two of up, for the same 32 columns of the activated rows. The warp that adds
// the last columns of a tile leaves its values in shared memory; the one that does so for the fourth tile activates the group and makes its
// codes, in its turn, so the next group's values come afterwards.
#pragma once

#include <cstdint>

#include "kernels/cpu/reference/elementwise.h"
#include "kernels/cuda/linear_output.h"
#include "kernels/cuda/row_codes.h"
#include "kernels/cuda/warp.h"

namespace llmi::cuda {

struct GatedOutput : LinearOutput {
  static constexpr int kGroupTiles = 4;
  static constexpr int kPairTiles = 2;  // of a part
  static constexpr int kGroupColumns = kPairTiles * static_cast<int>(kTileColumns);
  static_assert(kGroupColumns == kBlockSize);

  // A group's values: gate, then up. The lanes that store at once find a bank each.
  template <int kRows>
  struct Room {
    alignas(16) float values[kRows][2 * kGroupColumns + 8];
  };

  ActivationArgs activation;
  QuantizedRows forms;  // of the activated rows; codes null: activation.out is stored instead

  template <typename Visit>
  void ForEachPointer(const Visit& visit) const {
    LinearOutput::ForEachPointer(visit);
    visit(activation.out);
    VisitPointers(forms, visit);
  }

  // index: in the order of groups.
  LLMI_HD TileOutput Tile(int index, int64_t tile_bytes) const {
    const Part& part = parts[index / kPairTiles % 2];
    const int tile = index / kGroupTiles * kPairTiles + index % kPairTiles;
    return {part.weights + tile * tile_bytes, part.bias, part.out, static_cast<unsigned>(tile) * kTileColumns, part.num_columns};
  }
  template <int kRows>
  LLMI_HD void Keep(const TileOutput& tile, int index, int /*first_row*/, int row, int column, float value, Room<kRows>* room) const {
    room->values[row][index % kGroupTiles * static_cast<int>(kTileColumns) + column] =
        tile.Biased(tile.first_column + static_cast<unsigned>(column), value);
  }
  // After the tile's last value has been kept.
  template <typename Warp, int kRows>
  LLMI_HD void EndTile(const Warp& warp, int index, int first_row, Room<kRows>* room) const {
    if (index % kGroupTiles != kGroupTiles - 1) return;
    warp.Sync();
    LLMI_ROLL
    for (int begin = 0; begin < kRows && first_row + begin < num_rows; begin += kWarpBlocks) {
      typename Warp::template PerLane<FourFloats> activated;
      typename Warp::template PerLane<int64_t> blocks;
      warp.ForEachLane([&](int own_lane) {
        const auto lane = static_cast<int>(ComputedHere(static_cast<unsigned>(own_lane)));
        const int row = begin + lane / kBlockLanes;
        float* gate = room->values[row] + lane % kBlockLanes * kLaneValues;
        LLMI_ROLL
        for (int i = 0; i < kLaneValues; ++i) gate[i] = reference::GatedActivated(activation, gate[i], gate[kGroupColumns + i]);
        activated[own_lane] = *reinterpret_cast<const FourFloats*>(gate);
        const int64_t block = (first_row + row) * (activation.size / kBlockSize) + index / kGroupTiles;
        const bool exists = first_row + row < num_rows;
        blocks[own_lane] = exists ? block : -1;
        if (forms.codes != nullptr || !exists) return;
        *reinterpret_cast<FourFloats*>(activation.out + block * kBlockSize + lane % kBlockLanes * kLaneValues) = activated[own_lane];
      });
      if (forms.codes != nullptr) QuantizeBlocks(warp, activated, blocks, forms);
    }
  }
};

}  // namespace llmi::cuda
