#include "model/input_sums.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/errors.h"
#include "core/thread_pool.h"
#include "kernels/ops/linear_rows.h"

namespace llmi {
namespace {

constexpr int64_t kColumnsOfTask = 256;

// Adds the squares of each column of x, row by row.
void AddSquares(const KernelContext& context, const float* x, int64_t num_rows, int64_t num_cols, double* squares) {
  context.pool->ParallelFor((num_cols + kColumnsOfTask - 1) / kColumnsOfTask, context.num_threads, [&](int64_t task) {
    const int64_t begin = task * kColumnsOfTask, end = std::min(num_cols, begin + kColumnsOfTask);
    for (int64_t row = 0; row < num_rows; ++row) {
      const float* values = x + row * num_cols;
      for (int64_t column = begin; column < end; ++column) {
        squares[column] += static_cast<double>(values[column]) * static_cast<double>(values[column]);
      }
    }
  });
}

}  // namespace

MappedRegion::MappedRegion(int file, int64_t num_bytes) : num_bytes_(static_cast<size_t>(num_bytes)) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  struct stat status = {};
  const bool known = fstat(file, &status) == 0;
  offset_ = (status.st_size + page - 1) / page * page;
  // On a full disk this fails, where a write into the mapping would end the process.
  const bool there = known && posix_fallocate(file, offset_, num_bytes) == 0;
  data_ = there ? mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset_) : MAP_FAILED;
  if (data_ == MAP_FAILED) {
    throw Error::OutOfMemory("products of inputs: the temporary file cannot grow by " + std::to_string(num_bytes) +
                                 " bytes: free space in the folder of temporary files (TMPDIR names another one)",
                             num_bytes_, 0);
  }
}

MappedRegion::~MappedRegion() { munmap(data_, num_bytes_); }

InputSums::InputSums(const std::vector<TensorSlot>& slots, int file, const std::string& only) : file_(file), keeps_rows_(!only.empty()) {
  for (const TensorSlot& slot : slots) {
    if (slot.matrix == nullptr || slot.matrix->num_bytes() == 0 || slot.of_heads || slot.by_columns) continue;
    Matrices matrices = {{}, std::max<int64_t>(1, slot.num_experts)};
    const std::vector<std::string> names = slot.TensorNames();
    if (keeps_rows_ && std::ranges::find(names, only) == names.end()) continue;
    for (size_t i = 0; i < names.size(); ++i) matrices.readers.emplace_back(names[i], names.size() > 1 ? static_cast<int64_t>(i) : -1);
    matrices_.emplace(slot.matrix->view().data, std::move(matrices));
  }
}

InputSums::Input& InputSums::InputOf(const LinearArgs& args, const Matrices& first) {
  const auto [place, is_new] = places_.try_emplace(args.parts[0].weights.data, inputs_.size());
  if (!is_new) return inputs_[place->second];
  Input& input = inputs_.emplace_back();
  input.num_cols = args.parts[0].weights.num_cols;
  for (int64_t part = 0; part < args.num_parts; ++part) {
    const auto found = matrices_.find(args.parts[part].weights.data);
    if (found == matrices_.end()) continue;
    for (const auto& reader : found->second.readers) {
      if (std::ranges::find(input.readers, reader) == input.readers.end()) input.readers.push_back(reader);
    }
  }
  input.counts.resize(static_cast<size_t>(first.count));
  input.squares.resize(static_cast<size_t>(first.count * input.num_cols));
  if (file_ >= 0 && first.count == 1) {
    input.products = std::make_unique<MappedRegion>(file_, input.num_cols * input.num_cols * static_cast<int64_t>(sizeof(float)));
  }
  return input;
}

void InputSums::Take(const KernelContext& context, const LinearArgs& args, const ExpertPairs* pairs) {
  const auto found = matrices_.find(args.parts[0].weights.data);
  if (found == matrices_.end() || args.num_rows == 0) return;
  CheckInternal(args.x != nullptr && args.x_stride == args.parts[0].weights.num_cols, "input_sums: rows of fp32 are not there");
  Input& input = InputOf(args, found->second);
  const int64_t num_cols = input.num_cols;
  if (pairs == nullptr) {
    input.counts[0] += args.num_rows;
    AddSquares(context, args.x, args.num_rows, num_cols, input.squares.data());
    if (input.products != nullptr) AddRows(context, args.x, args.num_rows, input);
    if (keeps_rows_) input.kept.insert(input.kept.end(), args.x, args.x + args.num_rows * num_cols);
    return;
  }
  for (int64_t expert = 0; expert < pairs->num_experts; ++expert) {
    const int64_t begin = pairs->First(expert), count = pairs->First(expert + 1) - begin;
    input.counts[static_cast<size_t>(expert)] += count;
    AddSquares(context, args.x + begin * num_cols, count, num_cols, input.squares.data() + expert * num_cols);
  }
}

void InputSums::AddRows(const KernelContext& context, const float* x, int64_t num_rows, Input& input) {
  const auto full = static_cast<size_t>(kRows * input.num_cols);
  for (int64_t row = 0; row < num_rows; ++row) {
    input.rows.insert(input.rows.end(), x + row * input.num_cols, x + (row + 1) * input.num_cols);
    if (input.rows.size() == full) AddProducts(context, input);
  }
}

// products += rows^T rows, as a linear layer whose weights and rows are both the rows, turned: missing rows are zeros.
void InputSums::AddProducts(const KernelContext& context, Input& input) {
  const int64_t num_cols = input.num_cols, num_tiles = NumTiles(num_cols);
  input.rows.resize(static_cast<size_t>(kRows * num_cols), 0.0f);
  const auto num_bytes = static_cast<size_t>(num_tiles * kTileRows * kRows) * sizeof(float);
  packed_.Reserve(num_bytes, "products of inputs");
  turned_.Reserve(num_bytes, "products of inputs");
  float *packed = packed_.as<float>(), *turned = turned_.as<float>();
  context.pool->ParallelFor(num_tiles, context.num_threads, [&](int64_t tile) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t lane = 0; lane < kTileRows; ++lane) {
        const int64_t column = tile * kTileRows + lane;
        const float value = column < num_cols ? input.rows[static_cast<size_t>(row * num_cols + column)] : 0.0f;
        packed[(tile * kRows + row) * kTileRows + lane] = value;
        turned[column * kRows + row] = value;
      }
    }
  });
  const LinearPart part = {.weights = {PackedType::kF32, num_cols, kRows, packed_.data()}};
  const LinearArgs args = {.parts = &part,
                           .num_parts = 1,
                           .num_rows = num_cols,
                           .x = turned,
                           .x_stride = kRows,
                           .out = input.products->floats(),
                           .out_stride = num_cols,
                           .accumulate = true};
  constexpr int64_t kAtOnce = 3 * kTileRows;
  context.pool->ParallelFor((num_cols + kAtOnce - 1) / kAtOnce, context.num_threads, [&](int64_t task) {
    const int64_t begin = task * kAtOnce;
    RunLinearTiles(context, LinearOfRows(args, begin, std::min(kAtOnce, num_cols - begin)), part, {begin / kTileRows, num_tiles});
  });
  input.rows.clear();
}

void InputSums::Finish(const KernelContext& context) {
  for (Input& input : inputs_) {
    if (!input.rows.empty()) AddProducts(context, input);
  }
}

}  // namespace llmi
