// Attention alone, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "bindings/testing_activations.h"
#include "cache/kv_cache.h"
#include "engine/options.h"
#include "kernels/ops/attention_step.h"
#include "kernels/ops/attention_weights.h"

namespace py = pybind11;

namespace llmi {
namespace {

using Parents = std::optional<std::vector<int32_t>>;

// Positions of rows whose parents are given, the first at base_len. None: a chain.
std::vector<int32_t> PositionsOf(const Parents& parents, int64_t num_rows, int64_t base_len) {
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int32_t parent = parents ? (*parents)[static_cast<size_t>(i)] : static_cast<int32_t>(i) - 1;
    positions.push_back(parent < 0 ? static_cast<int32_t>(base_len) : positions[static_cast<size_t>(parent)] + 1);
  }
  return positions;
}

// A cache for one sequence of num_slots tokens, which are reserved.
struct OneSequence {
  OneSequence(const KernelContext& context, const KvGroups& groups, int64_t block_size, int64_t num_slots)
      : cache(groups, (num_slots + block_size - 1) / block_size, context.device) {
    cache.Init(&sequence);
    cache.TryReserve(&sequence, num_slots);
  }
  ~OneSequence() { cache.Free(&sequence); }

  KvCache cache;
  KvSequence sequence;
};

struct AttentionOptions {
  std::string kv_dtype = "float16";
  int64_t block_size = 16;
  int num_threads = 1;
  Parents parents;
  std::optional<std::vector<float>> sinks, linear_biases;
  std::optional<std::vector<int32_t>> firsts, lasts;
  SparseView view;

  AttentionOptions(const py::kwargs& given, AttentionArgs* args) {
    args->scale = 1.0f;
    Keywords keywords(given, "attention");
    keywords.Read("kv_dtype", &kv_dtype);
    keywords.Read("block_size", &block_size);
    keywords.Read("window", &args->window);
    keywords.Read("scale", &args->scale);
    keywords.Read("soft_cap", &args->soft_cap);
    keywords.Read("sinks", &sinks);
    keywords.Read("linear_biases", &linear_biases);
    keywords.Read("parents", &parents);
    keywords.Read("firsts", &firsts);
    keywords.Read("lasts", &lasts);
    keywords.Read("view", &view);
    keywords.Read("num_threads", &num_threads);
    keywords.CheckAllKnown();
  }
};

// One sequence in a cache: its K and V, and the queries of its last rows.
struct TestSequence {
  TestSequence(const std::string& table, const FloatArray& q, const FloatArray& k, int64_t num_heads, int64_t num_kv_heads,
               const py::kwargs& given)
      : options(given, &args),
        context(TestContext(table, options.num_threads)),
        kept(context, KvGroups({{args.window, num_kv_heads, q.shape(1) / num_heads}}, ParseKvType(options.kv_dtype), options.block_size),
             options.block_size, k.shape(0)),
        base_len(k.shape(0) - q.shape(0)),
        positions(options.lasts ? *options.lasts : PositionsOf(options.parents, q.shape(0), base_len)),
        placed_q(Place(context, q)),
        sinks(PlaceHeads(options.sinks)),
        linear_biases(PlaceHeads(options.linear_biases)) {
    queries = {.row_begin = 0,
               .num_rows = q.shape(0),
               .base_len = base_len,
               .block_table = kept.sequence.tables[0].data(),
               .parents = options.parents ? options.parents->data() : nullptr,
               .view = options.view};
    args.kv = kept.cache.View(0);
    args.segments = &queries;
    args.num_segments = 1;
    args.positions = positions.data();
    if (options.firsts) args.firsts = options.firsts->data();
    args.q = placed_q.data();
    args.q_stride = args.out_stride = q.shape(1);
    args.num_heads = num_heads;
    if (options.sinks) args.sinks = sinks.data();
    if (options.linear_biases) args.linear_biases = linear_biases.data();
  }
  PlacedFloats PlaceHeads(const std::optional<std::vector<float>>& values) const {
    return values ? PlacedFloats(context, values->data(), values->size()) : PlacedFloats(context, 0);
  }
  // K and V of the rows before the queries', and of those, then attend(written).
  template <typename Attend>
  void WriteAll(const FloatArray& k, const FloatArray& v, const Attend& attend) {
    PlacedFloats placed_k = Place(context, k), placed_v = Place(context, v);
    const AttentionSegment cached = {.row_begin = 0, .num_rows = base_len, .base_len = 0, .block_table = queries.block_table};
    KvWriteArgs written = {
        .kv = args.kv, .segments = &cached, .num_segments = 1, .k = placed_k.data(), .v = placed_v.data(), .stride = k.shape(1)};
    if (base_len > 0) KvWrite(context, written);
    written.segments = &queries;
    written.k += base_len * written.stride;
    written.v += base_len * written.stride;
    attend(written);
  }
  void WriteAndAttendAll(const FloatArray& k, const FloatArray& v) {
    WriteAll(k, v, [&](const KvWriteArgs& written) { WriteAndAttend(context, written, args); });
  }

  AttentionArgs args{};
  AttentionOptions options;
  KernelContext context;
  OneSequence kept;
  int64_t base_len;
  std::vector<int32_t> positions;
  PlacedFloats placed_q, sinks, linear_biases;
  AttentionSegment queries;
};

// The same of a sequence whose rows pick blocks; fp32.
FloatArray TestPickedAttention(const std::string& table, const FloatArray& q, const FloatArray& k, const FloatArray& v, int64_t num_heads,
                               int64_t num_kv_heads, const SparseView& view) {
  py::kwargs given;
  given["kv_dtype"] = "float32";
  given["view"] = view;
  TestSequence sequence(table, q, k, num_heads, num_kv_heads, given);
  FloatArray out({q.shape(0), q.shape(1)});
  sequence.args.out = out.mutable_data();
  sequence.kept.cache.MakeBounds();
  sequence.WriteAll(k, v, [&](const KvWriteArgs& written) {
    KvWrite(sequence.context, written);
    PagedAttention(sequence.context, PickedRows(sequence.context, sequence.args, sequence.kept.cache.BoundsView(0)).args());
  });
  return out;
}

// Writes K and V of one sequence, then queries them. k, v [num_slots, num_kv_heads * head_dim]; q [rows, num_heads * head_dim]: the last
// rows. By name: kv_dtype, block_size, window, scale, soft_cap, sinks and linear_biases of the heads, parents of the rows, num_threads;
// firsts and lasts: what each row sees, where rows see those behind them; view: a SparseView.
FloatArray TestAttention(const std::string& table, const FloatArray& q, const FloatArray& k, const FloatArray& v, int64_t num_heads,
                         int64_t num_kv_heads, const py::kwargs& given) {
  TestSequence sequence(table, q, k, num_heads, num_kv_heads, given);
  PlacedFloats out(sequence.context, static_cast<size_t>(q.size()));
  sequence.args.out = out.data();
  sequence.WriteAndAttendAll(k, v);
  FloatArray values({q.shape(0), q.shape(1)});
  out.Fetch(values.mutable_data());
  return values;
}

// What a test asks of attention_step, by name, all of which may be left out: cosine and sine [rows, pairs], query_norm and key_norm
// [head_dim], factors [rows], gate [rows, heads or values]; keeps_queries; bits: of the codes of the output, 0: none. The rest is for
// TestAttention.
struct StepOptions {
  std::optional<FloatArray> cosine, sine, query_norm, key_norm, factors, gate;
  bool keeps_queries = false;
  int bits = 0;
  py::dict rest;

  explicit StepOptions(const py::kwargs& given) {
    Keywords keywords(given, "attention_step");
    keywords.Read("cosine", &cosine);
    keywords.Read("sine", &sine);
    keywords.Read("query_norm", &query_norm);
    keywords.Read("key_norm", &key_norm);
    keywords.Read("factors", &factors);
    keywords.Read("gate", &gate);
    keywords.Read("keeps_queries", &keeps_queries);
    keywords.Read("bits", &bits);
    for (const auto& [name, value] : given) {
      if (!keywords.IsKnown(name.cast<std::string>())) rest[name] = value;
    }
  }
};

// As TestAttention, by attention_step. Returns its output; then, without the gate, what attention reads of the cache that it has written;
// then the codes, or None.
py::tuple TestAttentionStep(const std::string& table, const FloatArray& q, const FloatArray& k, const FloatArray& v, int64_t num_heads,
                            int64_t num_kv_heads, const py::kwargs& given) {
  const StepOptions options(given);
  TestSequence sequence(table, q, k, num_heads, num_kv_heads, py::kwargs(options.rest));
  const KernelContext& context = sequence.context;
  const int64_t num_rows = q.shape(0);
  const int64_t head_dim = q.shape(1) / num_heads;
  const auto place = [&](const std::optional<FloatArray>& array) { return array ? Place(context, *array) : PlacedFloats(context, 0); };
  PlacedFloats cosine = place(options.cosine), sine = place(options.sine), factors = place(options.factors), gate = place(options.gate);
  PlacedFloats query_norm = place(options.query_norm), key_norm = place(options.key_norm);
  PlacedFloats out(context, static_cast<size_t>(q.size())), again(context, static_cast<size_t>(q.size()));
  PlacedFloats projected(context, static_cast<size_t>(num_rows * (q.shape(1) + k.shape(1))));  // queries | keys
  const int64_t stride = q.shape(1) + k.shape(1);
  const auto project = [&] {
    FloatArray rows({num_rows, stride});
    for (int64_t row = 0; row < num_rows; ++row) {
      std::copy_n(q.data() + row * q.shape(1), q.shape(1), rows.mutable_data() + row * stride);
      std::copy_n(k.data() + (sequence.base_len + row) * k.shape(1), k.shape(1), rows.mutable_data() + row * stride + q.shape(1));
    }
    ToDevice(context, projected.data(), rows.data(), static_cast<size_t>(rows.size()) * sizeof(float));
  };
  // V as wide as what is projected.
  FloatArray wide({num_rows, stride});
  for (int64_t row = 0; row < num_rows; ++row) {
    std::copy_n(v.data() + (sequence.base_len + row) * v.shape(1), v.shape(1), wide.mutable_data() + row * stride);
  }
  PlacedFloats values = Place(context, wide);
  const auto norm = [&](PlacedFloats& weight, float* heads, int64_t count) -> NormArgs {
    return {.x = heads,
            .x_stride = stride,
            .out = heads,
            .out_stride = stride,
            .num_rows = num_rows,
            .num_groups = count,
            .group_stride = head_dim,
            .size = head_dim,
            .weight = weight.data(),
            .eps = 1e-5f};
  };
  AttentionStep step{};
  step.keeps_queries = options.keeps_queries;
  step.attention = sequence.args;
  step.attention.q = projected.data();
  step.attention.q_stride = stride;
  step.attention.out = out.data();
  HeadSteps& heads = step.heads;
  heads.queries = projected.data();
  heads.query_size = q.shape(1);
  heads.stride = stride;
  heads.num_rows = num_rows;
  if (options.query_norm) heads.query_norm = norm(query_norm, projected.data(), num_heads);
  if (options.key_norm) heads.key_norm = norm(key_norm, projected.data() + q.shape(1), num_kv_heads);
  if (options.factors) heads.query_factors = factors.data();
  if (options.cosine) {
    heads.rope = {.x = projected.data(),
                  .x_stride = stride,
                  .num_rows = num_rows,
                  .num_heads = num_heads + num_kv_heads,
                  .head_dim = head_dim,
                  .rotary_dim = 2 * options.cosine->shape(1),
                  .cosine = cosine.data(),
                  .sine = sine.data()};
  }
  if (options.gate) {
    step.gate = {.x = out.data(),
                 .gate = gate.data(),
                 .gate_stride = options.gate->shape(1),
                 .per_head = options.gate->shape(1) == num_heads,
                 .num_rows = num_rows,
                 .num_heads = num_heads,
                 .head_dim = head_dim};
  }
  std::optional<TestActivations> codes;
  if (options.bits > 0) step.output.quantized = codes.emplace(context, num_rows, q.shape(1), false, options.bits).rows;
  project();
  sequence.WriteAll(k, v, [&](KvWriteArgs written) {
    written.k = projected.data() + q.shape(1);
    written.v = values.data();
    written.stride = stride;
    step.written = written;
    AttendStep(context, step);
  });
  project();
  PrepareHeads(context, heads);
  AttentionArgs from_cache = step.attention;
  from_cache.out = again.data();
  PagedAttention(context, from_cache);
  return py::make_tuple(out.Fetch(), again.Fetch(), codes ? py::object(codes->Fetch()) : py::none());
}

// The attention weights [num_heads, num_slots] of the last row, of the reference table. Arguments as above, with k for v.
FloatArray TestAttentionWeights(const FloatArray& q, const FloatArray& k, int64_t num_heads, int64_t num_kv_heads,
                                const py::kwargs& given) {
  TestSequence sequence("reference", q, k, num_heads, num_kv_heads, given);
  std::vector<float> out(static_cast<size_t>(q.size()));
  sequence.args.out = out.data();
  sequence.WriteAndAttendAll(k, k);
  const std::vector<float> weights = AttentionWeights(sequence.args, sequence.queries, q.shape(0) - 1);
  FloatArray values({num_heads, k.shape(0)});
  std::copy(weights.begin(), weights.end(), values.mutable_data());
  return values;
}

}  // namespace

void RegisterTestingAttention(py::module_& module) {
  module.def("picked_attention", &TestPickedAttention);
  module.def("attention", &TestAttention, py::arg("table"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("num_heads"),
             py::arg("num_kv_heads"));
  module.def("attention_step", &TestAttentionStep, py::arg("table"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("num_heads"),
             py::arg("num_kv_heads"));
  module.def("attention_weights", &TestAttentionWeights, py::arg("q"), py::arg("k"), py::arg("num_heads"), py::arg("num_kv_heads"));
}

}  // namespace llmi
