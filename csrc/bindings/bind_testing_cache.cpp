// The block pool and a decoder driven by hand, for the tests: stateful property tests of the cache, and forward
// passes over chains and trees.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <string_view>

#include "bindings/bind_testing.h"
#include "cache/kv_cache.h"
#include "core/fp_env.h"
#include "engine/batch.h"
#include "engine/options.h"
#include "kernels/ops/attention.h"
#include "model/loader.h"

namespace py = pybind11;

namespace llmi {
namespace {

// A cache whose sequences are known by number.
class TestCache {
 public:
  TestCache(const std::vector<int64_t>& windows, int64_t block_size, int64_t num_pages, bool with_prefixes)
      : cache_(KvGroups(windows, 1, 16, KvType::kF16, block_size), num_pages) {
    if (with_prefixes) cache_.EnablePrefixCache(0x1234567);
  }
  ~TestCache() {
    for (auto& [id, sequence] : sequences_) cache_.Free(sequence.get());
  }
  int64_t New() {
    auto sequence = std::make_unique<KvSequence>();
    cache_.Init(sequence.get());
    sequences_[next_] = std::move(sequence);
    return next_++;
  }
  // A new sequence with what the prefix cache knows of token_ids; returns (id, number of tokens).
  std::pair<int64_t, int64_t> Attach(const std::vector<int32_t>& token_ids, int64_t max_tokens, const std::string& salt) {
    const int64_t id = New();
    const int64_t found = cache_.AttachPrefix(&Get(id), token_ids, max_tokens, salt);
    tokens_[id].assign(token_ids.begin(), token_ids.begin() + found);
    return {id, found};
  }
  int64_t Fork(int64_t id) {
    auto child = std::make_unique<KvSequence>();
    cache_.Fork(Get(id), child.get());
    tokens_[next_] = tokens_[id];
    sequences_[next_] = std::move(child);
    return next_++;
  }
  void Free(int64_t id) {
    cache_.Free(&Get(id));
    sequences_.erase(id);
    tokens_.erase(id);
  }
  // Reserves, marks every new slot with `mark` in every group's first layer, commits.
  bool Append(int64_t id, const std::vector<int32_t>& marks) {
    KvSequence& sequence = Get(id);
    const int64_t begin = sequence.num_tokens;
    if (!cache_.TryReserve(&sequence, static_cast<int64_t>(marks.size()))) return false;
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      for (size_t i = 0; i < marks.size(); ++i) *SlotOf(sequence, g, begin + static_cast<int64_t>(i)) = marks[i];
    }
    std::vector<int32_t>& tokens = tokens_[id];
    tokens.insert(tokens.end(), marks.begin(), marks.end());
    cache_.Commit(&sequence, static_cast<int64_t>(marks.size()), tokens);
    return true;
  }
  bool Rollback(int64_t id, int64_t num_tokens) {
    if (!cache_.TryRollback(&Get(id), num_tokens)) return false;
    tokens_[id].resize(static_cast<size_t>(Get(id).num_tokens));
    return true;
  }
  // The marks of the visible slots, per group, -1 where the block was given back.
  std::vector<std::vector<int32_t>> Marks(int64_t id) {
    KvSequence& sequence = Get(id);
    std::vector<std::vector<int32_t>> marks;
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      auto& list = marks.emplace_back();
      for (int64_t slot = 0; slot < sequence.num_tokens; ++slot) {
        const int64_t block = slot / cache_.groups().block_size();
        list.push_back(block < sequence.num_returned[g] ? -1 : *SlotOf(sequence, g, slot));
      }
    }
    return marks;
  }
  // Seconds to index a new text of num_tokens tokens and to match it again.
  double TimePrefix(int64_t num_tokens) {
    std::vector<int32_t> token_ids(static_cast<size_t>(num_tokens));
    for (size_t i = 0; i < token_ids.size(); ++i) token_ids[i] = static_cast<int32_t>(i * 7919 % 50'000);
    KvSequence first;
    KvSequence second;
    cache_.Init(&first);
    cache_.Init(&second);
    cache_.AttachPrefix(&first, token_ids, 0, "");
    CheckArgument(cache_.TryReserve(&first, num_tokens), "too few pages");
    const auto start = std::chrono::steady_clock::now();
    cache_.Commit(&first, num_tokens, token_ids);
    cache_.AttachPrefix(&second, token_ids, num_tokens - 1, "");
    const auto end = std::chrono::steady_clock::now();
    cache_.Free(&first);
    cache_.Free(&second);
    return std::chrono::duration<double>(end - start).count();
  }
  int64_t PagesNeeded(int64_t id, int64_t num_new) { return cache_.PagesNeeded(Get(id), num_new); }
  int64_t Length(int64_t id) { return Get(id).num_tokens; }
  KvCache& cache() { return cache_; }

 private:
  KvSequence& Get(int64_t id) { return *sequences_.at(id); }
  // An int32 inside the K tile of the slot: bytes of its lane in the first two rows.
  int32_t* SlotOf(KvSequence& sequence, size_t g, int64_t slot) {
    const int layer = cache_.groups().groups()[g].layers[0];
    const KvView view = cache_.View(layer);
    uint8_t* tile = KvTile(view, sequence.tables[g].data(), 0, slot) + KvValueOffset(view);
    return reinterpret_cast<int32_t*>(tile + slot % kSlotsPerTile * view.head_dim * KvTypeBytes(view.type));
  }

  KvCache cache_;
  std::map<int64_t, std::unique_ptr<KvSequence>> sequences_;
  std::map<int64_t, std::vector<int32_t>> tokens_;
  int64_t next_ = 0;
};

// A decoder and a cache without an engine.
class TestDecoder {
 public:
  using Pieces = std::vector<std::tuple<int64_t, std::vector<int32_t>, std::optional<std::vector<int32_t>>>>;

  TestDecoder(const std::string& path, const std::string& dtype, const std::string& kv_dtype, const std::string& table, int num_threads,
              int64_t block_size, int64_t num_pages, const std::string& overrides, int activation_bits)
      : context_(TestContext(table, num_threads)),
        decoder_(LoadDecoder(context_, ModelFiles(path), ParseWeightFormat(dtype), {}, overrides)),
        cache_(Groups(ParseKvType(kv_dtype), block_size), num_pages, context_.device) {
    context_.wide_activations = HasTwoBytes(activation_bits);
  }
  ~TestDecoder() {
    for (auto& [id, sequence] : sequences_) cache_.Free(sequence.get());
  }

  int64_t NewSequence() {
    auto sequence = std::make_unique<KvSequence>();
    cache_.Init(sequence.get());
    sequences_[next_] = std::move(sequence);
    return next_++;
  }
  void Free(int64_t id) {
    cache_.Free(sequences_.at(id).get());
    sequences_.erase(id);
  }
  bool Rollback(int64_t id, int64_t num_tokens) { return cache_.TryRollback(sequences_.at(id).get(), num_tokens); }

  // One forward pass. pieces: (sequence, token_ids, parents or None). Chains are committed; a tree is dropped
  // after the pass. Returns logits [all rows, vocab], and the taps [rows, hidden] of the asked layers.
  // The batch passes through its bytes.
  py::tuple Forward(const Pieces& pieces, const std::vector<int>& tap_layers) {
    const ForwardBatch batch = BatchFromBytes(ToBytes(Batch(pieces, tap_layers)));
    const FloatEnvironmentGuard guard;
    const ForwardResult result = decoder_->Forward(context_, cache_, batch);
    for (const auto& [id, tokens, parents] : pieces) {
      KvSequence& kv = *sequences_.at(id);
      parents ? cache_.Trim(&kv) : cache_.Commit(&kv, static_cast<int64_t>(tokens.size()));
    }
    const ModelConfig& config = decoder_->config();
    FloatArray logits({static_cast<py::ssize_t>(batch.num_rows()), static_cast<py::ssize_t>(config.vocab_size)});
    decoder_->LmHead(context_, result.hidden, batch.num_rows(), logits.mutable_data());
    py::list taps;
    for (const std::vector<float>& tap : result.taps) {
      taps.append(FloatArray({static_cast<py::ssize_t>(batch.num_rows()), static_cast<py::ssize_t>(config.hidden_size)}, tap.data()));
    }
    return py::make_tuple(logits, taps);
  }

  // The bytes of the batch that Forward would run; nothing is computed.
  py::bytes BatchBytes(const Pieces& pieces, const std::vector<int>& tap_layers) {
    const std::vector<uint8_t> bytes = ToBytes(Batch(pieces, tap_layers));
    for (const auto& [id, tokens, parents] : pieces) cache_.Trim(sequences_.at(id).get());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::string Audit() const { return cache_.Audit(); }
  int64_t num_window_blocks_returned() const { return cache_.num_window_blocks_returned(); }

 private:
  ForwardBatch Batch(const Pieces& pieces, const std::vector<int>& tap_layers) {
    BatchBuilder builder(cache_.groups().groups().size());
    builder.AddTaps(tap_layers);
    for (const auto& [id, tokens, parents] : pieces) {
      KvSequence& kv = *sequences_.at(id);
      CheckArgument(cache_.TryReserve(&kv, static_cast<int64_t>(tokens.size())), "the test cache is full");
      builder.BeginSegment(kv);
      if (parents) {
        builder.AddDraft({tokens, *parents, {}});
      } else {
        for (int32_t token_id : tokens) builder.AddToken(token_id, true);
      }
    }
    return builder.Take();
  }

  KvGroups Groups(KvType type, int64_t block_size) const {
    const ModelConfig& config = decoder_->config();
    std::vector<int64_t> windows;
    for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
    return KvGroups(windows, config.num_kv_heads, config.head_dim, type, block_size);
  }

  KernelContext context_;
  std::unique_ptr<Decoder> decoder_;
  KvCache cache_;
  std::map<int64_t, std::unique_ptr<KvSequence>> sequences_;
  int64_t next_ = 0;
};

// Attention alone: K and V of one sequence are written, then queried.
// k, v [num_slots, kv_heads * head_dim]; q [rows, heads * head_dim] are the last rows.
FloatArray TestAttention(const std::string& table, const FloatArray& q, const FloatArray& k, const FloatArray& v, int64_t num_heads,
                         int64_t num_kv_heads, const std::string& kv_dtype, int64_t block_size, int64_t window, float scale, float soft_cap,
                         const std::optional<std::vector<int32_t>>& parents, int num_threads) {
  const KernelContext context = TestContext(table, num_threads);
  const int64_t head_dim = q.shape(1) / num_heads;
  const int64_t num_slots = k.shape(0);
  const int64_t num_rows = q.shape(0);
  const int64_t base_len = num_slots - num_rows;
  KvCache cache(KvGroups({window}, num_kv_heads, head_dim, ParseKvType(kv_dtype), block_size), (num_slots + block_size - 1) / block_size,
                context.device);
  KvSequence sequence;
  cache.Init(&sequence);
  cache.TryReserve(&sequence, num_slots);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < num_rows; ++i) {
    const int32_t parent = parents ? (*parents)[static_cast<size_t>(i)] : static_cast<int32_t>(i) - 1;
    positions.push_back(parent < 0 ? static_cast<int32_t>(base_len) : positions[static_cast<size_t>(parent)] + 1);
  }
  const AttentionSegment cached = {.row_begin = 0, .num_rows = base_len, .base_len = 0, .block_table = sequence.tables[0].data()};
  const AttentionSegment queries = {.row_begin = 0,
                                    .num_rows = num_rows,
                                    .base_len = base_len,
                                    .block_table = sequence.tables[0].data(),
                                    .parents = parents ? parents->data() : nullptr};
  const KvView view = cache.View(0);
  PlacedFloats placed_k = Place(context, k);
  PlacedFloats placed_v = Place(context, v);
  const int64_t kv_size = num_kv_heads * head_dim;
  KvWriteArgs written = {.kv = view, .segments = &cached, .num_segments = 1, .k = placed_k.data(), .v = placed_v.data(), .stride = kv_size};
  if (base_len > 0) KvWrite(context, written);
  written.segments = &queries;
  written.k += base_len * kv_size;
  written.v += base_len * kv_size;
  FloatArray out({q.shape(0), q.shape(1)});
  PlacedFloats placed(context, static_cast<size_t>(out.size()));
  WriteAndAttend(context, written,
                 {.kv = view,
                  .segments = &queries,
                  .num_segments = 1,
                  .positions = positions.data(),
                  .q = Place(context, q).data(),
                  .q_stride = q.shape(1),
                  .num_heads = num_heads,
                  .scale = scale,
                  .soft_cap = soft_cap,
                  .window = window,
                  .out = placed.data(),
                  .out_stride = q.shape(1)});
  placed.Fetch(out.mutable_data());
  cache.Free(&sequence);
  return out;
}

}  // namespace

void RegisterTestingCache(py::module_& module) {
  py::class_<TestCache>(module, "Cache")
      .def(py::init<const std::vector<int64_t>&, int64_t, int64_t, bool>(), py::arg("windows"), py::arg("block_size"), py::arg("num_pages"),
           py::arg("with_prefixes") = false)
      .def("attach", &TestCache::Attach, py::arg("token_ids"), py::arg("max_tokens"), py::arg("salt") = "")
      .def(
          "match",
          [](TestCache& test, const std::vector<int32_t>& tokens, const std::string& salt) {
            return test.cache().MatchPrefix(tokens, static_cast<int64_t>(tokens.size()), salt);
          },
          py::arg("token_ids"), py::arg("salt") = "")
      .def("clear", [](TestCache& test) { test.cache().ClearPrefixCache(); })
      .def_property_readonly("num_available", [](TestCache& test) { return test.cache().num_available(); })
      .def_property_readonly("num_nodes", [](TestCache& test) { return test.cache().prefix_tree()->num_nodes(); })
      .def_property_readonly("num_evicted", [](TestCache& test) { return test.cache().prefix_tree()->num_evicted(); })
      .def("new", &TestCache::New)
      .def("fork", &TestCache::Fork)
      .def("free", &TestCache::Free)
      .def("append", &TestCache::Append)
      .def("rollback", &TestCache::Rollback)
      .def("marks", &TestCache::Marks)
      .def("time_prefix", &TestCache::TimePrefix, py::arg("num_tokens"))
      .def("pages_needed", &TestCache::PagesNeeded)
      .def("length", &TestCache::Length)
      .def("audit", [](TestCache& test) { return test.cache().Audit(); })
      .def("corrupt", [](TestCache& test, int32_t page) { test.cache().pool().CorruptForTest(page); })
      .def_property_readonly("num_free", [](TestCache& test) { return test.cache().pool().num_free(); })
      .def_property_readonly("num_copies_on_write", [](TestCache& test) { return test.cache().num_copies_on_write(); })
      .def_property_readonly("num_window_blocks_returned", [](TestCache& test) { return test.cache().num_window_blocks_returned(); });
  py::class_<TestDecoder>(module, "Decoder")
      .def(py::init<const std::string&, const std::string&, const std::string&, const std::string&, int, int64_t, int64_t,
                    const std::string&, int>(),
           py::arg("path"), py::arg("dtype") = "auto", py::arg("kv_dtype") = "float16", py::arg("table") = "", py::arg("num_threads") = 2,
           py::arg("block_size") = 16, py::arg("num_pages") = 4096, py::arg("overrides") = "", py::arg("activation_bits") = 8)
      .def("new_sequence", &TestDecoder::NewSequence)
      .def("free", &TestDecoder::Free)
      .def("rollback", &TestDecoder::Rollback)
      .def("forward", &TestDecoder::Forward, py::arg("pieces"), py::arg("tap_layers") = std::vector<int>{})
      .def("batch_bytes", &TestDecoder::BatchBytes, py::arg("pieces"), py::arg("tap_layers") = std::vector<int>{})
      .def("audit", &TestDecoder::Audit)
      .def_property_readonly("num_window_blocks_returned", &TestDecoder::num_window_blocks_returned);
  // Reads a batch from its bytes and writes it again.
  module.def(
      "batch_from_bytes",
      [](const py::bytes& bytes) {
        const std::string_view view = bytes;
        const std::vector<uint8_t> again = ToBytes(BatchFromBytes({reinterpret_cast<const uint8_t*>(view.data()), view.size()}));
        return py::bytes(reinterpret_cast<const char*>(again.data()), again.size());
      },
      py::arg("bytes"));
  module.def("attention", &TestAttention, py::arg("table"), py::arg("q"), py::arg("k"), py::arg("v"), py::arg("num_heads"),
             py::arg("num_kv_heads"), py::arg("kv_dtype") = "float16", py::arg("block_size") = 16, py::arg("window") = 0,
             py::arg("scale") = 1.0f, py::arg("soft_cap") = 0.0f, py::arg("parents") = py::none(), py::arg("num_threads") = 1);
}

}  // namespace llmi
