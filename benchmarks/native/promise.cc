// Measures the cost of a fixed order of sums (benchmarks/promise.py): each op of a step is compared with variants that may add in any
// order, on the same data, interleaved, on one thread. Prints a line of JSON for each op of each work: the seconds of all rounds, the
// engine's kernel first, and for float weights each variant's error against float64. Exits with 1 if a variant does not compute the op.
//
//   promise LAYERS HIDDEN INTERMEDIATE HEADS KV_HEADS HEAD_DIM VOCAB {q4_1,q8_0,bf16} ROUNDS
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "core/fp_env.h"
#include "core/philox.h"
#include "free_order.h"
#include "kernels/dispatch/tables.h"
#include "kernels/ops/attention_tasks.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/quantize_rows.h"

namespace llmi {
namespace {

struct Shape {
  int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab;
  PackedType type;
  int64_t rounds;
};

struct Work {
  const char* name;
  int64_t rows;     // of the step
  int64_t context;  // of each sequence before it; rows are one sequence's if it is 0
};
constexpr Work kWorks[] = {{"decode 1", 1, 128},   {"decode 1, context 2000", 1, 2000},
                           {"decode 4", 4, 128},   {"decode 8", 8, 128},
                           {"decode 32", 32, 128}, {"prefill 512", 512, 0}};

uint32_t Word(uint64_t i, uint32_t stream) {
  return Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), stream, 0}, 1)[0];
}
float Unit(uint64_t i, uint32_t stream) { return static_cast<float>(Word(i, stream) >> 8) * 0x1p-23f - 1.0f; }

std::vector<float> Random(int64_t size, uint32_t stream) {
  std::vector<float> out(static_cast<size_t>(size));
  for (size_t i = 0; i < out.size(); ++i) out[i] = Unit(i, stream);
  return out;
}

// Packed weights of random codes; their scales are all the same, which no kernel can know.
class Weights {
 public:
  Weights(PackedType type, int64_t num_rows, int64_t num_cols) : view_{type, num_rows, num_cols, nullptr} {
    const int64_t bytes = num_rows / kTileRows * PackedTileBytes(type, num_cols);
    data_.resize(static_cast<size_t>(bytes / 8 + 8 * 1024));  // prefetches end inside
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = (uint64_t{Word(i % 65536, 7)} << 32) | Word(i % 65536, 8);
    auto* at = reinterpret_cast<uint8_t*>(data_.data());
    if (type == PackedType::kBF16) {
      auto* values = reinterpret_cast<uint16_t*>(at);
      for (int64_t i = 0; i < bytes / 2; ++i) values[i] = static_cast<uint16_t>((values[i] & 0x8003) | 0x3C00);
    } else {
      const int64_t block = PackedGroupBytes(type);
      const int64_t codes = PackedCodeBytes(type);
      for (int64_t offset = codes; offset < bytes; offset += block) {
        auto* tail = reinterpret_cast<uint16_t*>(at + offset);
        for (int64_t i = 0; i < (block - codes) / 2; ++i) tail[i] = i < kTileRows ? 0x1C00 : 0xA800;  // 2^-8, -2^-5
      }
    }
    view_.data = at;
  }
  const PackedView& view() const { return view_; }

 private:
  PackedView view_;
  std::vector<uint64_t> data_;
};

// An op of one layer: the engine's kernel, then the variants; each computes layer i. `out` is compared once.
struct Op {
  std::string name;
  int64_t layers;
  std::vector<std::function<void(int64_t)>> variants;
  const std::vector<float>* out;
  std::function<double()> error;  // of *out, of layer 0; none where every variant is as accurate
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool SameUpToRounding(const Op& op) {
  op.variants[0](0);
  const std::vector<float> expected = *op.out;
  float largest = 0.0f;
  for (float value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t v = 1; v < op.variants.size(); ++v) {
    op.variants[v](0);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::fabs((*op.out)[i] - expected[i]) <= 1e-4f * largest) continue;
      std::fprintf(stderr, "%s: variant %zu gives %g for %g at %zu\n", op.name.c_str(), v, static_cast<double>((*op.out)[i]),
                   static_cast<double>(expected[i]), i);
      return false;
    }
  }
  return largest > 0.0f;
}

void Print(const char* name, const std::vector<double>& values) {
  std::printf("\"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.4g", i > 0 ? ", " : "", values[i]);
  std::printf("]");
}

constexpr double kMostSeconds = 5.0;  // an op, from the fifth round on
bool Measure(const char* work, const Op& op, int64_t rounds) {
  if (!SameUpToRounding(op)) return false;
  const size_t num_variants = op.variants.size();
  std::vector<std::vector<double>> seconds(num_variants);
  const double deadline = Seconds() + kMostSeconds;
  for (int64_t round = 0; round < rounds && (round < 4 || Seconds() < deadline); ++round) {
    for (size_t turn = 0; turn < num_variants; ++turn) {
      const size_t v = (turn + static_cast<size_t>(round)) % num_variants;
      const double start = Seconds();
      for (int64_t layer = 0; layer < op.layers; ++layer) op.variants[v](layer);
      seconds[v].push_back(Seconds() - start);
    }
  }
  std::printf("{\"work\": \"%s\", \"op\": \"%s\", \"seconds\": {", work, op.name.c_str());
  for (size_t v = 0; v < num_variants; ++v) {
    if (v > 0) std::printf(", ");
    Print(std::to_string(v).c_str(), seconds[v]);
  }
  std::printf("}");
  if (op.error) {
    std::vector<double> errors;
    for (const auto& variant : op.variants) {
      variant(0);
      errors.push_back(op.error());
    }
    std::printf(", ");
    Print("errors", errors);
  }
  std::printf("}\n");
  std::fflush(stdout);
  return true;
}

struct Layer {
  Weights qkv, o, gate_up, down;
};

class Step {
 public:
  explicit Step(const Shape& shape) : shape_(shape), table_(GetKernelTable("")) {
    const int64_t q_width = shape.heads * shape.head_dim;
    for (int64_t i = 0; i < shape.layers; ++i) {
      layers_.push_back({Weights(shape.type, q_width + 2 * shape.kv_heads * shape.head_dim, shape.hidden),
                         Weights(shape.type, shape.hidden, q_width), Weights(shape.type, 2 * shape.intermediate, shape.hidden),
                         Weights(shape.type, shape.hidden, shape.intermediate)});
    }
    head_.emplace_back(shape.type, shape.vocab, shape.hidden);
  }

  bool Run(const Work& work) {
    const auto of_layer = [&](const Weights Layer::* weights) {
      return [this, weights](int64_t i) -> const PackedView& { return (layers_[static_cast<size_t>(i)].*weights).view(); };
    };
    const int64_t head_rows = work.context == 0 ? 1 : work.rows;
    return Linear(work, "q, k, v", shape_.layers, work.rows, true, of_layer(&Layer::qkv)) &&
           Linear(work, "o", shape_.layers, work.rows, false, of_layer(&Layer::o)) &&
           Linear(work, "gate, up", shape_.layers, work.rows, false, of_layer(&Layer::gate_up)) &&
           Linear(work, "down", shape_.layers, work.rows, false, of_layer(&Layer::down)) &&
           Linear(work, "head", 1, head_rows, true, [this](int64_t) -> const PackedView& { return head_[0].view(); }) && Norms(work) &&
           Attention(work) && Elementwise(work);
  }

 private:
  struct Activations {
    std::vector<float> x;
    std::vector<int8_t> codes;
    std::vector<float> scales, sums;
    std::vector<int32_t> half_sums;
    QuantizedRows rows;
  };

  void Quantize(int64_t num_rows, int64_t num_cols, bool fine, Activations* out) const {
    const auto size = static_cast<size_t>(num_rows * num_cols);
    out->x = Random(num_rows * num_cols, 3);
    out->codes.resize(size);
    out->scales.resize(size / 16);
    out->sums.resize(size / 32);
    out->half_sums.resize(size / 16);
    out->rows = {.num_cols = num_cols,
                 .codes = out->codes.data(),
                 .scales = out->scales.data(),
                 .sums = out->sums.data(),
                 .half_sums = out->half_sums.data(),
                 .fine = fine};
    table_.quantize_rows(out->x.data(), 0, num_rows, out->rows);
  }

  // Of bf16 weights: root mean square over a sample of outputs.
  static double ErrorOf(const PackedView& w, const std::vector<float>& x, const std::vector<float>& out) {
    const auto* values = reinterpret_cast<const uint16_t*>(w.data);
    const auto cols = static_cast<size_t>(w.num_cols);
    const auto width = static_cast<size_t>(w.num_rows);
    const size_t num_rows = std::min<size_t>(x.size() / cols, 8);
    const size_t num_outputs = std::min<size_t>(width, 512);
    double sum = 0;
    for (size_t row = 0; row < num_rows; ++row) {
      for (size_t i = 0; i < num_outputs; ++i) {
        const uint16_t* weights = values + i / kTileRows * kTileRows * cols + i % kTileRows;
        double exact = 0;
        for (size_t k = 0; k < cols; ++k) {
          exact += static_cast<double>(Bfloat16ToFloat(weights[k * kTileRows])) * static_cast<double>(x[row * cols + k]);
        }
        const double difference = static_cast<double>(out[row * width + i]) - exact;
        sum += difference * difference;
      }
    }
    return std::sqrt(sum / static_cast<double>(num_rows * num_outputs));
  }

  template <typename WeightsOf>
  bool Linear(const Work& work, const char* name, int64_t layers, int64_t num_rows, bool fine, const WeightsOf& weights_of) {
    const bool is_float = !IsQuantizedPacked(shape_.type);
    const int64_t num_cols = weights_of(0).num_cols;
    const int64_t width = weights_of(0).num_rows;
    Activations activations;
    Quantize(num_rows, num_cols, fine && !is_float, &activations);
    std::vector<float> out(static_cast<size_t>(num_rows * width));
    const auto call = [&, num_rows](int64_t layer, const auto& kernel) {
      const LinearPart part = {.weights = weights_of(layer)};
      kernel(LinearArgs{.parts = &part,
                        .num_parts = 1,
                        .num_rows = num_rows,
                        .x = activations.x.data(),
                        .x_stride = num_cols,
                        .quantized = activations.rows,
                        .out = out.data(),
                        .out_stride = width},
             part, width / kTileRows);
    };
    Op op = {name, layers, {}, &out, {}};
    if (is_float) op.error = [&] { return ErrorOf(weights_of(0), activations.x, out); };
    op.variants.push_back([&](int64_t layer) {
      const auto kernel = is_float ? table_.linear_float : table_.linear_quantized;
      call(layer, [&](const LinearArgs& args, const LinearPart& part, int64_t tiles) { kernel(args, part, 0, tiles); });
    });
    for (LinearVariant variant : FreeLinears(shape_.type, fine && !is_float)) {
      op.variants.push_back([&, variant](int64_t layer) { call(layer, variant); });
    }
    return Measure(work.name, op, shape_.rounds);
  }

  bool Norms(const Work& work) {
    const std::vector<float> x = Random(work.rows * shape_.hidden, 4);
    const std::vector<float> weight = Random(shape_.hidden, 5);
    std::vector<float> out(x.size());
    const NormArgs args = {.x = x.data(),
                           .x_stride = shape_.hidden,
                           .out = out.data(),
                           .out_stride = shape_.hidden,
                           .num_rows = work.rows,
                           .size = shape_.hidden,
                           .weight = weight.data(),
                           .eps = 1e-6f};
    Op op = {"norms", 2 * shape_.layers + 1, {[&](int64_t) { table_.norm(args, 0, args.num_rows); }}, &out, {}};
    for (NormVariant variant : FreeNorms()) op.variants.push_back([&, variant](int64_t) { variant(args); });
    return Measure(work.name, op, shape_.rounds);
  }

  bool Attention(const Work& work) {
    constexpr int32_t kBlock = 32;
    const int64_t num_sequences = work.context == 0 ? 1 : work.rows;
    const int64_t rows_each = work.rows / num_sequences;
    const int64_t blocks_each = (work.context + rows_each + kBlock - 1) / kBlock;
    const int64_t page_bytes = KvLayerBlockBytes(kBlock, shape_.kv_heads, shape_.head_dim, KvType::kF16);
    const int64_t layer_bytes = page_bytes * num_sequences * blocks_each;
    std::vector<uint16_t> arena(static_cast<size_t>(layer_bytes * shape_.layers / 2));
    for (size_t i = 0; i < arena.size(); ++i)
      arena[i] = static_cast<uint16_t>((Word(i % 65536, 6) & 0x83FF) | 0x3800);  // 0.5 to 1, both signs
    std::vector<int32_t> block_table(static_cast<size_t>(num_sequences * blocks_each));
    for (size_t i = 0; i < block_table.size(); ++i) block_table[i] = static_cast<int32_t>(i);
    std::vector<AttentionSegment> segments;
    std::vector<int32_t> positions;
    for (int64_t s = 0; s < num_sequences; ++s) {
      segments.push_back({.row_begin = s * rows_each,
                          .num_rows = rows_each,
                          .base_len = work.context,
                          .block_table = block_table.data() + s * blocks_each});
      for (int64_t row = 0; row < rows_each; ++row) positions.push_back(static_cast<int32_t>(work.context + row));
    }
    const int64_t width = shape_.heads * shape_.head_dim;
    const std::vector<float> q = Random(work.rows * width, 9);
    std::vector<float> out(q.size());
    const auto args_of = [&](int64_t layer) -> AttentionArgs {
      const KvView kv = {.base = reinterpret_cast<uint8_t*>(arena.data()) + layer * layer_bytes,
                         .page_bytes = page_bytes,
                         .layer_offset = 0,
                         .page_index = 0,
                         .pages_per_block = 1,
                         .block_size = kBlock,
                         .num_kv_heads = static_cast<int32_t>(shape_.kv_heads),
                         .head_dim = static_cast<int32_t>(shape_.head_dim),
                         .type = KvType::kF16};
      return {.kv = kv,
              .segments = segments.data(),
              .num_segments = num_sequences,
              .positions = positions.data(),
              .q = q.data(),
              .q_stride = width,
              .num_heads = shape_.heads,
              .scale = 0.125f,
              .out = out.data(),
              .out_stride = width};
    };
    const std::vector<AttentionTask> tasks = AttentionTasks(args_of(0));
    const auto call = [&](int64_t layer, const auto& kernel) {
      const AttentionArgs args = args_of(layer);
      for (const AttentionTask& task : tasks) kernel(args, task);
    };
    Op op = {"attention", shape_.layers, {[&](int64_t layer) { call(layer, table_.attention); }}, &out, {}};
    for (AttentionVariant variant : FreeAttentions()) op.variants.push_back([&, variant](int64_t layer) { call(layer, variant); });
    return Measure(work.name, op, shape_.rounds);
  }

  // No sums: there is no order to be freed, and its time counts in the step.
  bool Elementwise(const Work& work) {
    const int64_t width = std::max({shape_.hidden, shape_.intermediate, shape_.heads * shape_.head_dim});
    Activations activations;
    Quantize(work.rows, width, false, &activations);
    std::vector<float> out(static_cast<size_t>(work.rows * shape_.intermediate));
    const std::vector<float> gate = Random(work.rows * shape_.intermediate, 10);
    ActivationArgs silu{};
    silu.activation = Activation::kSilu;
    Op op = {"activation, quantisation",
             shape_.layers,
             {[&](int64_t) {
               table_.activate(silu, gate.data(), activations.x.data(), work.rows * shape_.intermediate, out.data());
               if (!IsQuantizedPacked(shape_.type)) return;
               for (int64_t cols : {shape_.hidden, shape_.heads * shape_.head_dim, shape_.hidden, shape_.intermediate}) {
                 QuantizedRows rows = activations.rows;
                 rows.num_cols = cols;
                 table_.quantize_rows(activations.x.data(), 0, work.rows, rows);
               }
             }},
             &out,
             {}};
    return Measure(work.name, op, shape_.rounds);
  }

  Shape shape_;
  const KernelTable& table_;
  std::vector<Layer> layers_;
  std::vector<Weights> head_;
};

int Main(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(stderr, "usage: promise LAYERS HIDDEN INTERMEDIATE HEADS KV_HEADS HEAD_DIM VOCAB {q4_1,q8_0,bf16} ROUNDS\n");
    return 2;
  }
  int64_t n[10] = {};
  for (int i : {1, 2, 3, 4, 5, 6, 7, 9}) n[i] = std::atoll(argv[i]);
  const std::string type = argv[8];
  const PackedType packed = type == "bf16" ? PackedType::kBF16 : type == "q8_0" ? PackedType::kQ8 : PackedType::kQ4Min;
  const FloatEnvironmentGuard environment;
  Step step({n[1], n[2], n[3], n[4], n[5], n[6], n[7], packed, n[9]});
  std::printf("{\"table\": \"%s\"}\n", GetKernelTable("").name);
  for (const Work& work : kWorks) {
    if (!step.Run(work)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace llmi

int main(int argc, char** argv) { return llmi::Main(argc, argv); }
