// Draws the rows whose plan has in_parallel, one row per thread. RowProcessor draws the other rows in order. The bits are those that
// RowProcessor would have drawn: each op gives the same bits for any number of threads. Engine thread only.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/rows/combined_rows.h"
#include "engine/rows/device_draws.h"
#include "engine/rows/user_processors.h"
#include "engine/running.h"
#include "kernels/ops/context.h"

namespace llmi {

class PreparedRows {
 public:
  PreparedRows(const KernelContext& context, UserProcessors& processors, int64_t vocab_size)
      : context_(context), processors_(processors), vocab_size_(vocab_size) {}

  // Draws rows of a chunk. logits: their rows, which are changed where nothing reads them afterwards. combined: the rows before the masks.
  // Forgets the rows of the chunk before.
  void Prepare(std::span<const LogitsRow> rows, HostLogits& logits, const CombinedRows& combined, const DeviceDraws& device);
  // The sample's token, once, of a row of the chunk with in_parallel; the sample's sampler state is the one after it. The law goes to *law
  // if something reads the row after its draw. Throws what failed for the row.
  int32_t Take(Sample& sample, std::vector<float>* law);

 private:
  struct Row {
    float* law = nullptr;     // [vocab_size]: `copy`, or the row's logits themselves where nothing reads those afterwards
    std::vector<float> copy;  // empty, or the law apart from the logits
    int32_t token = 0;
    SamplerState sampler;  // after the token
    std::exception_ptr error;
  };
  // The chosen rows, each with its index in the chunk.
  using Chosen = std::vector<std::pair<Row*, size_t>>;
  Chosen Choose(std::span<const LogitsRow> rows, HostLogits& logits, const DeviceDraws& device);
  template <typename Body>
  void ForEachRow(std::span<const LogitsRow> rows, const Chosen& chosen, const Body& body);

  const KernelContext& context_;
  UserProcessors& processors_;
  const int64_t vocab_size_;
  std::unordered_map<const Sample*, Row> rows_;
  std::vector<std::vector<float>> spare_laws_;  // memory of earlier rows, for the next
};

}  // namespace llmi
