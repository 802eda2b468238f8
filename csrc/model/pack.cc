#include "model/pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "core/bfloat16.h"
#include "core/errors.h"
#include "core/half.h"
#include "core/thread_pool.h"
#include "kernels/dispatch/device.h"
#include "kernels/dispatch/transfer.h"
#include "model/chunk_tiles.h"
#include "model/quantize.h"

namespace llmi {
namespace {

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// Keeps the first exception that a task throws on any thread.
class FirstError {
 public:
  // Wraps `body` so that it does not throw.
  template <typename Body>
  auto Guard(const Body& body) {
    return [this, body](int64_t task) {
      try {
        body(task);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    };
  }
  void Rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

// The bytes of the source rows from which packed rows [begin, end) are made.
class SourceRows {
 public:
  SourceRows(const TensorView& source, int64_t row_bytes, int64_t begin, int64_t end, const RowMap* rows)
      : row_bytes_(row_bytes), rows_(rows), first_(begin) {
    int64_t last = end - 1;
    if (rows != nullptr) {
      first_ = INT64_MAX;
      last = -1;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = rows->source_row(row);
        if (from < 0) continue;
        first_ = std::min(first_, from);
        last = std::max(last, from);
      }
    }
    if (last < 0) return;
    const auto num_bytes = static_cast<size_t>((last - first_ + 1) * row_bytes);
    bytes_.reset(new uint8_t[num_bytes]);
    source.Read(static_cast<uint64_t>(first_ * row_bytes), num_bytes, bytes_.get());
  }
  // Null for a row of zeros.
  const uint8_t* Row(int64_t row) const {
    const int64_t from = rows_ == nullptr ? row : rows_->source_row(row);
    return from < 0 ? nullptr : bytes_.get() + (from - first_) * row_bytes_;
  }

 private:
  int64_t row_bytes_;
  const RowMap* rows_;
  int64_t first_;
  std::unique_ptr<uint8_t[]> bytes_;
};

void PackFloatRow(PackedType type, const float* values, int64_t num_cols, int64_t lane, uint8_t* tile) {
  if (IsRowsPacked(type)) {
    const auto convert = type == PackedType::kF16Rows ? FloatToHalf : FloatToBfloat16;
    std::transform(values, values + num_cols, reinterpret_cast<uint16_t*>(tile) + lane * num_cols, convert);
    return;
  }
  if (type == PackedType::kF32) {
    float* out = reinterpret_cast<float*>(tile) + lane;
    for (int64_t k = 0; k < num_cols; ++k) out[k * kTileRows] = values[k];
    return;
  }
  uint16_t* out = reinterpret_cast<uint16_t*>(tile) + lane;
  for (int64_t k = 0; k < num_cols; ++k)
    out[k * kTileRows] = type == PackedType::kF16 ? FloatToHalf(values[k]) : FloatToBfloat16(values[k]);
}

// Packs one row's codes of one block. In the tile, a row's words of four codes are kTileRows words apart, and a group's 64 bytes are a
// vector.
void PackCodes(PackedType type, const uint8_t* codes, uint32_t* out) {
  uint32_t words[8];
  std::memcpy(words, codes, sizeof words);
  // Packs bits [from, from + bits) of the codes, 8 / bits groups a vector: interleaved, or one after the other.
  const auto pack = [&](int from, int bits, bool interleaved, uint32_t* to) {
    const uint32_t mask = 0x01010101u * ((1u << bits) - 1u);
    const int count = 8 / bits;
    for (int vector = 0; vector < bits; ++vector) {
      uint32_t packed = 0;
      for (int i = 0; i < count; ++i) packed |= (words[interleaved ? vector + i * bits : vector * count + i] >> from & mask) << (i * bits);
      to[vector * kTileRows] = packed;
    }
  };
  const int low_bits = PackedLowBits(type);
  const int high_bits = PackedHighBits(type);
  pack(0, low_bits, true, out);
  if (high_bits > 0) pack(low_bits, high_bits, false, out + low_bits * kTileRows);
}

void PackHalves(PackedType type, const CodeBlock& block, int64_t lane, uint8_t* to) {
  auto* halves = reinterpret_cast<uint16_t*>(to) + lane;
  halves[0] = block.half_scale;
  if (HasMinimumPacked(type)) halves[16] = block.half_minimum;
}

void PackScales(PackedType type, const CodeBlock& block, int64_t lane, uint8_t* to) {
  switch (PackedScales(type)) {
    case PackedScale::kHalf: PackHalves(type, block, lane, to); break;
    case PackedScale::kFloat:
      for (int64_t i = 0; i < 2; ++i) reinterpret_cast<float*>(to)[i * 16 + lane] = block.scales[i];
      break;
    case PackedScale::kExponent:
    case PackedScale::kBytes:
    case PackedScale::kNibbles:
      for (int64_t i = 0; i < PackedScaleBytes(type) / 16; ++i) to[i * 16 + lane] = block.scale_codes[i];
      break;
    case PackedScale::kNone: break;
  }
}

void PackQuantizedRow(PackedType type, DType dtype, const uint8_t* row, int64_t num_cols, int64_t lane, uint8_t* tile) {
  CodeBlock block{};
  for (int64_t index = 0; index < num_cols / kBlockSize; ++index) {
    ReadCodeBlock(dtype, row, index, &block);
    uint8_t* group = tile + PackedGroup(type, index) * PackedGroupBytes(type);
    const int64_t place = PackedBlockInGroup(type, index);
    PackCodes(type, block.codes, reinterpret_cast<uint32_t*>(group + place * PackedCodeBytes(type)) + lane);
    PackScales(type, block, lane, group + PackedScaleOffset(type, place));
    if (IsSuperBlockPacked(type)) PackHalves(type, block, lane, group + PackedScaleOffset(type, PackedGroupBlocks(type)));
  }
}

// The columns must be whole blocks of the type that the matrix is stored in.
void CheckColumns(const TensorView& source, DType stored) {
  const DTypeInfo& info = Info(stored);
  if (source.shape[1] % info.block_size == 0) return;
  throw Error(ErrorKind::kInvalidArgument,
              "tensor '" + source.name + "' has " + std::to_string(source.shape[1]) + " columns: " + info.name + " needs a multiple of " +
                  std::to_string(info.block_size),
              "quantization");
}

}  // namespace

WeightFormat ParseWeightFormat(const std::string& name) {
  if (name == "auto") return WeightFormat::kAsStored;
  if (name == "float32") return WeightFormat::kF32;
  if (name == "float16") return WeightFormat::kF16;
  if (name == "bfloat16") return WeightFormat::kBF16;
  if (name == "q8_0") return WeightFormat::kQ8_0;
  if (name == "q4_0") return WeightFormat::kQ4_0;
  throw Error(ErrorKind::kInvalidArgument, "dtype '" + name + "' is unknown: auto, float32, float16 or bfloat16", "dtype");
}

DType StoredType(DType dtype, WeightFormat format) {
  if (format == WeightFormat::kQ8_0 && !IsQuantized(dtype)) return DType::kQ8_0;
  if (format != WeightFormat::kQ4_0) return dtype;
  // Bytes of a tile of 256 columns, in memory: 16 x 256 weights of five bits.
  constexpr int64_t kMostBytes = 16 * 256 * 5 / 8;
  return PackedTileBytes(OwnPackedType(dtype), 256) > kMostBytes ? DType::kQ4_0 : dtype;
}

PackedType PackedTypeOf(DType dtype, WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return PackedType::kF32;
    case WeightFormat::kF16: return PackedType::kF16;
    case WeightFormat::kBF16: return PackedType::kBF16;
    case WeightFormat::kAsStored:
    case WeightFormat::kQ8_0:
    case WeightFormat::kQ4_0: break;
  }
  return OwnPackedType(StoredType(dtype, format));
}

AlignedBuffer PlaceWeights(const KernelContext& context, const void* data, size_t num_bytes) {
  AlignedBuffer copy(num_bytes, "weights", context.device);
  if (num_bytes > 0) ToDevice(context, copy.data(), data, num_bytes);
  return copy;
}

PackedForm PackedFormOf(const KernelContext& context, DType dtype, WeightFormat format, int64_t num_rows, int64_t num_cols, bool tiles) {
  PackedType type = PackedTypeOf(dtype, format);
  const bool has_own_form = context.device != nullptr && !tiles;
  if (has_own_form) type = context.device->OwnForm(type);
  const bool in_chunks = has_own_form && HasChunksPacked(type);
  const int64_t tile_bytes = in_chunks ? ChunkTileBytes(type, num_cols) : PackedTileBytes(type, num_cols);
  return {type, in_chunks, static_cast<uint64_t>(NumTiles(num_rows)) * static_cast<uint64_t>(tile_bytes)};
}

PackedMatrix::PackedMatrix(const KernelContext& context, const TensorView& source, WeightFormat format, const RowMap* row_map,
                           MemorySource* arena, bool tiles)
    : num_rows_(row_map != nullptr ? row_map->num_rows : static_cast<int64_t>(source.shape[0])),
      num_cols_(static_cast<int64_t>(source.shape[1])),
      source_dtype_(source.dtype) {
  CheckColumns(source, StoredType(source.dtype, format));
  const auto [type, in_chunks, total_bytes] = PackedFormOf(context, source.dtype, format, num_rows_, num_cols_, tiles);
  type_ = type;
  in_chunks_ = in_chunks;
  if (IsTablePacked(type)) table_ = CodeTableOf(source.dtype);
  const int64_t num_tiles = NumTiles(num_rows_);
  const int64_t tile_bytes = PackedTileBytes(type_, num_cols_);
  AlignedBuffer packed(total_bytes, ("tensor '" + source.name + "'").c_str(), context.device == nullptr ? arena : nullptr);
  const int64_t row_bytes = num_cols_ / Info(source.dtype).block_size * Info(source.dtype).block_bytes;
  source_bytes_ = static_cast<uint64_t>(std::min(num_rows_, static_cast<int64_t>(source.shape[0])) * row_bytes);
  // A task reads about 256 KB of the file: they stay in the core's cache between reading and packing.
  const int64_t tiles_per_task = std::max<int64_t>(1, (int64_t{1} << 18) / (row_bytes * kTileRows));
  const int64_t num_tasks = (num_tiles + tiles_per_task - 1) / tiles_per_task;
  FirstError error;
  context.pool->ParallelFor(num_tasks, context.num_threads, error.Guard([&](int64_t task) {
    const DType stored = StoredType(source.dtype, format);
    std::vector<float> values(static_cast<size_t>(num_cols_));
    std::vector<uint8_t> blocks(
        stored == source.dtype ? 0 : static_cast<size_t>(num_cols_ / Info(stored).block_size * Info(stored).block_bytes));
    const int64_t row_begin = task * tiles_per_task * kTileRows;
    const int64_t row_end = std::min(num_rows_, row_begin + tiles_per_task * kTileRows);
    const SourceRows rows(source, row_bytes, row_begin, row_end, row_map);
    std::vector<uint8_t> own_tile(in_chunks_ ? static_cast<size_t>(tile_bytes) : 0);  // before it is permuted
    for (int64_t row = row_begin; row < row_end; ++row) {
      const uint8_t* from = rows.Row(row);
      uint8_t* tile = in_chunks_ ? own_tile.data() : packed.data() + row / kTileRows * tile_bytes;
      if (from == nullptr) {
        // zeros, as the buffer has them
      } else if (!blocks.empty()) {
        DequantizeRow(source.dtype, from, num_cols_, values.data());
        if (!AllFinite(values)) {
          throw Error(ErrorKind::kModelFile, "tensor '" + source.name + "' holds NaN or infinity: it cannot be quantised", source.name);
        }
        QuantizeRow(stored, values.data(), num_cols_, blocks.data());
        PackQuantizedRow(type_, stored, blocks.data(), num_cols_, row % kTileRows, tile);
      } else if (IsQuantizedPacked(type_)) {
        PackQuantizedRow(type_, source.dtype, from, num_cols_, row % kTileRows, tile);
      } else {
        DequantizeRow(source.dtype, from, num_cols_, values.data());
        PackFloatRow(type_, values.data(), num_cols_, row % kTileRows, tile);
      }
      if (in_chunks_ && (row + 1 == row_end || row % kTileRows + 1 == kTileRows)) {
        PermuteToChunks(type_, table_, own_tile.data(), num_cols_, packed.data() + row / kTileRows * ChunkTileBytes(type_, num_cols_));
        std::fill(own_tile.begin(), own_tile.end(), uint8_t{0});
      }
    }
  }));
  error.Rethrow();
  data_ = context.device == nullptr ? std::move(packed) : PlaceWeights(context, packed.data(), packed.size());
}

}  // namespace llmi
