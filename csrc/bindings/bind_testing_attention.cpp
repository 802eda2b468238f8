// Attention alone, for the tests.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "cache/kv_cache.h"
#include "engine/options.h"
#include "kernels/ops/attention.h"

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

// Writes K and V of one sequence, then queries them. k, v [num_slots, num_kv_heads * head_dim]; q [rows, num_heads * head_dim]: the last
// rows. By name: kv_dtype, block_size, window, scale, soft_cap, parents of the rows, num_threads.
FloatArray TestAttention(const std::string& table, const FloatArray& q, const FloatArray& k, const FloatArray& v, int64_t num_heads,
                         int64_t num_kv_heads, const py::kwargs& given) {
  std::string kv_dtype = "float16";
  int64_t block_size = 16;
  int num_threads = 1;
  Parents parents;
  AttentionArgs args{};
  args.num_segments = 1;
  args.q_stride = args.out_stride = q.shape(1);
  args.num_heads = num_heads;
  args.scale = 1.0f;
  Keywords keywords(given, "attention");
  keywords.Read("kv_dtype", &kv_dtype);
  keywords.Read("block_size", &block_size);
  keywords.Read("window", &args.window);
  keywords.Read("scale", &args.scale);
  keywords.Read("soft_cap", &args.soft_cap);
  keywords.Read("parents", &parents);
  keywords.Read("num_threads", &num_threads);
  keywords.CheckAllKnown();
  const KernelContext context = TestContext(table, num_threads);
  const int64_t num_rows = q.shape(0), num_slots = k.shape(0), base_len = num_slots - num_rows;
  const KvGroups groups({args.window}, num_kv_heads, q.shape(1) / num_heads, ParseKvType(kv_dtype), block_size);
  OneSequence kept(context, groups, block_size, num_slots);
  const int32_t* block_table = kept.sequence.tables[0].data();
  const AttentionSegment cached = {.row_begin = 0, .num_rows = base_len, .base_len = 0, .block_table = block_table};
  const AttentionSegment queries = {.row_begin = 0,
                                    .num_rows = num_rows,
                                    .base_len = base_len,
                                    .block_table = block_table,
                                    .parents = parents ? parents->data() : nullptr};
  PlacedFloats placed_k = Place(context, k), placed_v = Place(context, v), placed_q = Place(context, q);
  PlacedFloats out(context, static_cast<size_t>(q.size()));
  KvWriteArgs written = {
      .kv = kept.cache.View(0), .segments = &cached, .num_segments = 1, .k = placed_k.data(), .v = placed_v.data(), .stride = k.shape(1)};
  if (base_len > 0) KvWrite(context, written);
  written.segments = &queries;
  written.k += base_len * written.stride;
  written.v += base_len * written.stride;
  const std::vector<int32_t> positions = PositionsOf(parents, num_rows, base_len);
  args.kv = written.kv;
  args.segments = &queries;
  args.positions = positions.data();
  args.q = placed_q.data();
  args.out = out.data();
  WriteAndAttend(context, written, args);
  FloatArray values({q.shape(0), q.shape(1)});
  out.Fetch(values.mutable_data());
  return values;
}

}  // namespace

void RegisterTestingAttention(py::module_& module) {
  module.def("attention", &TestAttention, py::arg("table"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("num_heads"),
             py::arg("num_kv_heads"));
}

}  // namespace llmi
