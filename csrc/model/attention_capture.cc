#include "model/attention_capture.h"

#include "kernels/dispatch/transfer.h"
#include "kernels/ops/attention_weights.h"

namespace llmi {
namespace {

// One segment's part of a layer's cache, fetched from a device.
struct FetchedSegment {
  std::vector<uint8_t> pages;
  std::vector<int32_t> table;
  KvView kv;
};

FetchedSegment FetchSegment(const KernelContext& context, const KvView& kv, const AttentionSegment& segment) {
  FetchedSegment fetched;
  const int64_t num_blocks = (segment.base_len + segment.num_rows + kv.block_size - 1) / kv.block_size;
  const int64_t layer_bytes = KvLayerBlockBytes(kv.block_size, kv.num_kv_heads, kv.head_dim, kv.type);
  fetched.pages.resize(static_cast<size_t>(num_blocks * layer_bytes));
  for (int64_t block = 0; block < num_blocks; ++block) {
    fetched.table.push_back(static_cast<int32_t>(block));
    const int32_t page = segment.block_table[block * kv.pages_per_block + kv.page_index];
    if (page < 0) continue;  // before the window
    ToHost(context, fetched.pages.data() + block * layer_bytes, kv.base + page * kv.page_bytes + kv.layer_offset,
           static_cast<size_t>(layer_bytes));
  }
  fetched.kv = kv;
  fetched.kv.base = fetched.pages.data();
  fetched.kv.page_bytes = layer_bytes;
  fetched.kv.layer_offset = 0;
  fetched.kv.page_index = 0;
  fetched.kv.pages_per_block = 1;
  return fetched;
}

// The values on the host: *values, if they must be fetched. Null stays null.
const float* Fetched(const KernelContext& context, const float* there, int64_t count, std::vector<float>* values) {
  if (context.device == nullptr || there == nullptr) return there;
  values->resize(static_cast<size_t>(count));
  ToHost(context, values->data(), there, static_cast<size_t>(count) * sizeof(float));
  return values->data();
}

}  // namespace

std::vector<std::vector<float>> WantedWeights(const KernelContext& context, AttentionArgs args, int64_t num_rows,
                                              const std::vector<int32_t>& wanted_rows) {
  std::vector<float> queries;
  std::vector<float> sinks;
  std::vector<float> biases;
  const KvView kv = args.kv;
  args.q = Fetched(context, args.q, num_rows * args.q_stride, &queries);
  args.sinks = Fetched(context, args.sinks, args.num_heads, &sinks);
  args.linear_biases = Fetched(context, args.linear_biases, args.num_heads, &biases);
  std::vector<std::vector<float>> weights;
  const AttentionSegment* segment = args.segments;
  for (int32_t row : wanted_rows) {
    while (row >= segment->row_begin + segment->num_rows) ++segment;
    AttentionSegment readable = *segment;
    FetchedSegment fetched;
    if (context.device != nullptr) {
      fetched = FetchSegment(context, kv, *segment);
      args.kv = fetched.kv;
      readable.block_table = fetched.table.data();
    }
    weights.push_back(AttentionWeights(args, readable, row - segment->row_begin));
  }
  return weights;
}

}  // namespace llmi
