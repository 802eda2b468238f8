// Runs the ops of every table that the machine has on fixed inputs and prints a digest of each result's bits. The same
// program built for another processor must print the same digests for the reference table.
#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "core/fp_env.h"
#include "core/philox.h"
#include "core/thread_pool.h"
#include "kernels/dispatch/tables.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/row_ops.h"
#include "kernels/ops/top_candidates.h"
#include "kernels/ops/vocab.h"
#include "model/pack.h"
#include "model/rope_table.h"
#include "sampling/law.h"

namespace llmi {
namespace {

std::vector<float> Random(int64_t count, uint32_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t word = Philox4x32({static_cast<uint32_t>(i), stream, 0, 0}, 1)[0];
    values[i] = static_cast<float>(static_cast<int32_t>(word)) * 0x1p-30f;
  }
  return values;
}

template <typename T>
void Print(const char* table, const std::string& name, const std::vector<T>& values) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  std::printf("%s %s %016llx\n", table, name.c_str(), static_cast<unsigned long long>(hash));
}

// Where a block's fp16 are: its scale, and d_min or the minimum.
bool IsHalf(DType dtype, uint32_t at) {
  switch (dtype) {
    case DType::kF16: return true;
    case DType::kMXFP4: return false;
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return at <= 2;
    case DType::kQ2_K: return at >= 80;
    case DType::kQ3_K: return at == 108;
    case DType::kQ6_K: return at == 208;
    case DType::kTQ2_0: return at == 64;
    default: return at == 0;
  }
}

// Random bytes as a tensor; fp16 scales are kept small by clearing their top exponent bits, exponents near 2^-8 by setting them.
std::vector<uint8_t> RandomBlocks(DType dtype, int64_t count) {
  const DTypeInfo& info = Info(dtype);
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * info.block_bytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(Philox4x32({static_cast<uint32_t>(i), 7, 0, 0}, 2)[0] >> 13);
  for (int64_t block = 0; block < count; ++block) {
    uint8_t* data = bytes.data() + block * info.block_bytes;
    if (dtype == DType::kMXFP4) data[0] = static_cast<uint8_t>(116 + data[0] % 8);
    for (uint32_t at = 0; at + 1 < info.block_bytes; at += 2) {
      if (IsHalf(dtype, at)) data[at + 1] &= 0x9F;
    }
  }
  return bytes;
}

struct Activations {
  std::vector<int8_t> codes, low;
  std::vector<float> scales, sums;
  std::vector<int32_t> half_sums;
  QuantizedRows rows;

  Activations(int64_t num_rows, int64_t num_cols, bool fine, bool two_bytes)
      : codes(static_cast<size_t>(num_rows * num_cols)),
        low(two_bytes ? codes.size() : 0),
        scales(codes.size() / 16),
        sums(codes.size() / 32),
        half_sums(codes.size() / 16),
        rows{.num_cols = num_cols,
             .codes = codes.data(),
             .scales = scales.data(),
             .sums = sums.data(),
             .half_sums = half_sums.data(),
             .fine = fine,
             .low = two_bytes ? low.data() : nullptr} {}
  Activations(const Activations&) = delete;
  Activations& operator=(const Activations&) = delete;

  // No activations have such codes, but dots of them fit, too.
  void FillWithLargest() {
    for (int8_t& code : codes) code = 127;
    for (int8_t& code : low) code = 127;
    for (int32_t& sum : half_sums) sum = 16 * (256 * 127 + 127);
    for (size_t block = 0; block < sums.size(); ++block) sums[block] = scales[block] * static_cast<float>(32 * (256 * 127 + 127));
  }
};

void LinearDigests(const KernelContext& context) {
  constexpr int64_t kRows = 37, kCols = 256, kTokens = 5;
  const std::vector<float> x = Random(kTokens * kCols, 1);
  for (DType dtype :
       {DType::kF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kQ5_1, DType::kQ5_K,
        DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kTQ2_0, DType::kIQ3_S}) {
    const std::vector<uint8_t> bytes = RandomBlocks(dtype, kRows * kCols / Info(dtype).block_size);
    const MemoryBytes memory(bytes.data(), bytes.size());
    const TensorView view = {"t", dtype, {kRows, kCols}, bytes.size(), 0, &memory};
    for (WeightFormat format : {WeightFormat::kAsStored, WeightFormat::kF32, WeightFormat::kBF16}) {
      const PackedMatrix matrix(context, view, format);
      const std::string name = std::string(Info(dtype).name) + "/" + std::to_string(static_cast<int>(format));
      for (const char* form : {"linear ", "linear, fine ", "linear, two bytes ", "linear, 127 in both bytes "}) {
        Activations activations(kTokens, kCols, form == std::string("linear, fine "), std::string(form).ends_with("bytes "));
        ConvertInput(context, x.data(), kTokens, kCols, {activations.rows});
        if (form == std::string("linear, 127 in both bytes ")) activations.FillWithLargest();
        std::vector<float> out(kTokens * kRows);
        const LinearPart part = {.weights = matrix.view()};
        Linear(context, {.parts = &part,
                         .num_parts = 1,
                         .num_rows = kTokens,
                         .x = x.data(),
                         .x_stride = kCols,
                         .quantized = activations.rows,
                         .out = out.data(),
                         .out_stride = kRows});
        Print(context.table->name, form + name, out);
      }
      std::vector<float> rows(2 * kCols);
      const int32_t ids[] = {36, 3};
      Embedding(context, matrix.view(), ids, 2, 1.5f, rows.data());
      Print(context.table->name, "embedding " + name, rows);
    }
  }
}

void NormDigests(const KernelContext& context, const std::vector<float>& x, const std::vector<float>& weight) {
  for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    for (int64_t size : {256, 75}) {
      std::vector<float> out(x.size());
      Norm(context, {.kind = kind,
                     .x = x.data(),
                     .x_stride = 256,
                     .out = out.data(),
                     .out_stride = 256,
                     .num_rows = 4,
                     .size = size,
                     .weight = weight.data(),
                     .bias = size == 75 ? weight.data() + 100 : nullptr,
                     .eps = 1e-6f});
      Print(context.table->name, "norm", out);
    }
  }
}

void RowDigests(const KernelContext& context) {
  std::vector<float> x = Random(4 * 256, 2);
  const std::vector<float> weight = Random(256, 3);
  NormDigests(context, x, weight);
  RopeSpec rope;
  rope.theta = 500000.0;
  rope.rotary_dim = 64;
  const RopeTable table(rope);
  const int32_t positions[] = {0, 5, 1000, 8191};
  std::vector<float> cosine(4 * 32), sine(4 * 32);
  table.Compute(context, positions, 4, cosine.data(), sine.data());
  Print(context.table->name, "rope table", cosine);
  Rope(context, {.x = x.data(),
                 .x_stride = 256,
                 .num_rows = 4,
                 .num_heads = 4,
                 .head_dim = 64,
                 .rotary_dim = 64,
                 .cosine = cosine.data(),
                 .sine = sine.data()});
  Print(context.table->name, "rope", x);
  std::vector<float> activated(4 * 128);
  for (Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2, Activation::kXielu}) {
    Activate(context, {.activation = activation,
                       .gated = true,
                       .parameters = {0.8f, 1.3f, 0.5f, -1e-6f},
                       .x = x.data(),
                       .num_rows = 4,
                       .size = 128,
                       .out = activated.data()});
    Print(context.table->name, "activate", activated);
  }
  Gate(context,
       {.x = activated.data(), .gate = x.data(), .gate_stride = 256, .per_head = false, .num_rows = 4, .num_heads = 4, .head_dim = 32});
  AddScaled(context, x.data(), 512, 0.22f, activated.data());
  Print(context.table->name, "gate, add_scaled", activated);
}

void AttentionDigests(const KernelContext& context) {
  constexpr int64_t kSlots = 300, kHeads = 4, kKvHeads = 2, kHeadDim = 32;
  const std::vector<float> q = Random(9 * kHeads * kHeadDim, 4), k = Random(kSlots * kKvHeads * kHeadDim, 5),
                           v = Random(kSlots * kKvHeads * kHeadDim, 6);
  const std::vector<float> slopes = Random(2 * kHeads, 9);  // then sinks
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 1, 2, -1, 6, 7};
  for (KvType type : {KvType::kF16, KvType::kF32, KvType::kInt8, KvType::kBF16, KvType::kF8}) {
    for (int64_t window : {0, 40}) {
      KvCache cache(KvGroups(KvLayers({window}, kKvHeads, kHeadDim), type, 16), 20);
      KvSequence sequence;
      cache.Init(&sequence);
      if (!cache.TryReserve(&sequence, kSlots)) return;
      const AttentionSegment all = {.row_begin = 0, .num_rows = kSlots, .base_len = 0, .block_table = sequence.tables[0].data()};
      KvWrite(context,
              {.kv = cache.View(0), .segments = &all, .num_segments = 1, .k = k.data(), .v = v.data(), .stride = kKvHeads * kHeadDim});
      for (const int32_t* tree : {static_cast<const int32_t*>(nullptr), parents.data()}) {
        std::vector<int32_t> positions;
        for (int32_t i = 0; i < 9; ++i) {
          const int32_t parent = tree != nullptr ? tree[i] : i - 1;
          positions.push_back(parent < 0 ? kSlots - 9 : positions[static_cast<size_t>(parent)] + 1);
        }
        const AttentionSegment queries = {
            .row_begin = 0, .num_rows = 9, .base_len = kSlots - 9, .block_table = sequence.tables[0].data(), .parents = tree};
        std::vector<float> out(q.size());
        PagedAttention(context, {.kv = cache.View(0),
                                 .segments = &queries,
                                 .num_segments = 1,
                                 .positions = positions.data(),
                                 .q = q.data(),
                                 .q_stride = kHeads * kHeadDim,
                                 .num_heads = kHeads,
                                 .scale = 0.17f,
                                 .window = window,
                                 .sinks = tree != nullptr ? slopes.data() + kHeads : nullptr,
                                 .linear_biases = tree != nullptr ? slopes.data() : nullptr,
                                 .out = out.data(),
                                 .out_stride = kHeads * kHeadDim});
        Print(context.table->name, "attention", out);
      }
      cache.Free(&sequence);
    }
  }
}

void VocabDigests(const KernelContext& context) {
  const std::vector<float> logits = Random(9000, 8);
  Print(context.table->name, "log_sum_exp", std::vector<float>{LogSumExp(context, logits.data(), 9000)});
  std::vector<uint64_t> masses(logits.size());
  TokenMasses(context, logits.data(), 9000, 2.0f, masses.data());
  Print(context.table->name, "token_masses", masses);
  const MassMoments moments = MomentsOfMasses(context, logits.data(), 9000, 2.0f);
  Print(context.table->name, "mass_moments", std::vector<double>{static_cast<double>(moments.total), moments.product});
  const std::vector<float> others = Random(9000, 9);
  Print(context.table->name, "divergence",
        std::vector<float>{LayerDivergence(context, logits.data(), others.data(), 9000, false),
                           LayerDivergence(context, logits.data(), others.data(), 9000, true)});
  std::vector<TopCandidate> best(20);
  TopCandidates(context, {.logits = logits.data(), .num_rows = 2, .vocab_size = 4500, .count = 10, .out = best.data()});
  Print(context.table->name, "top_candidates", best);
  SamplingParams params;
  params.temperature = 0.7;
  params.top_p = 0.9;
  params.max_tokens = 10;
  std::vector<float> law = logits;
  const std::vector<int32_t> history = {1, 2, 3};
  ProcessLogits(context, params, {history, 2}, nullptr, law.data(), 9000);
  Print(context.table->name, "law", law);
  std::vector<int32_t> drawn;
  for (int64_t position = 0; position < 50; ++position) drawn.push_back(Draw(context, {9, position, 0, 0, 0}, law.data(), 9000));
  Print(context.table->name, "draw", drawn);
}

}  // namespace
}  // namespace llmi

int main() {
  const llmi::FloatEnvironmentGuard guard;
  for (const std::string& name : llmi::AvailableTables()) {
    const llmi::KernelContext context = {&llmi::GetKernelTable(name), &llmi::ThreadPool::Shared(), 2};
    llmi::LinearDigests(context);
    llmi::RowDigests(context);
    llmi::AttentionDigests(context);
    llmi::VocabDigests(context);
  }
  return 0;
}
