// A decoder and a cache driven by hand, for tests of forward passes over chains and trees.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/gil.h"
#include "bindings/keywords.h"
#include "cache/kv_cache.h"
#include "core/fp_env.h"
#include "engine/batch.h"
#include "engine/options.h"
#include "engine/sizing.h"
#include "model/batch_bytes.h"
#include "model/kv_layers.h"
#include "model/loader.h"
#include "model/rank_calls.h"

namespace py = pybind11;

namespace llmi {
namespace {

// A decoder and a cache without an engine.
class TestDecoder {
 public:
  using Pieces = std::vector<std::tuple<int64_t, std::vector<int32_t>, std::optional<std::vector<int32_t>>>>;

  TestDecoder(const KernelContext& context, std::unique_ptr<Decoder> decoder, KvType kv_type, int64_t block_size, int64_t num_pages)
      : context_(context),
        decoder_(std::move(decoder)),
        cache_(Groups(kv_type, block_size), num_pages, context_.device,
               RankStates(decoder_->state_sizes(), StatesFor(decoder_->spec(), 64))) {
    if (decoder_->ranks() != nullptr) cache_.NoteEvents();
  }
  ~TestDecoder() {
    for (auto& [id, sequence] : sequences_) cache_.Free(sequence.get());
  }

  int64_t NewSequence() {
    auto sequence = std::make_unique<KvSequence>();
    cache_.Init(sequence.get());
    sequence->state.goes_back = true;
    sequences_[next_] = std::move(sequence);
    return next_++;
  }
  void Free(int64_t id) {
    cache_.Free(sequences_.at(id).get());
    sequences_.erase(id);
  }
  bool Rollback(int64_t id, int64_t num_tokens) { return cache_.TryRollback(sequences_.at(id).get(), num_tokens); }

  // One forward pass. pieces: (sequence, token_ids, parents or None). A chain is committed; a tree is dropped after the pass. Returns the
  // logits [all rows, vocab_size], and for each layer in tap_layers its output [all rows, hidden_size]. The batch is written to bytes and
  // read again on the way.
  py::tuple Forward(const Pieces& pieces, const std::vector<int>& tap_layers) {
    const ForwardBatch batch = BatchFromBytes(ToBytes(Batch(pieces, tap_layers)));
    const FloatEnvironmentGuard guard;
    const ForwardResult result = Run(pieces, batch);
    const ModelSpec& spec = decoder_->spec();
    FloatArray logits({static_cast<py::ssize_t>(batch.num_rows()), static_cast<py::ssize_t>(spec.vocab_size)});
    decoder_->LmHead(context_, result.hidden, batch.num_rows(), logits.mutable_data());
    py::list taps;
    for (const std::vector<float>& tap : result.taps) {
      taps.append(FloatArray({static_cast<py::ssize_t>(batch.num_rows()), static_cast<py::ssize_t>(spec.hidden_size)}, tap.data()));
    }
    return py::make_tuple(logits, taps);
  }

  // The same pass of chains. Returns of each row the logits of the tokens that it allows, the others -inf.
  FloatArray ForwardAllowed(const Pieces& pieces, const std::vector<std::vector<int32_t>>& allowed) {
    const ForwardBatch batch = Batch(pieces, {});
    const FloatEnvironmentGuard guard;
    const ForwardResult result = Run(pieces, batch);
    const int64_t vocab_size = decoder_->spec().vocab_size;
    std::vector<std::vector<uint32_t>> words;
    words.reserve(allowed.size());
    for (const std::vector<int32_t>& ids : allowed) words.push_back(BitsOf(ids, vocab_size));
    FloatArray logits({static_cast<py::ssize_t>(batch.num_rows()), static_cast<py::ssize_t>(vocab_size)});
    const std::vector<TokenBits> sets(words.begin(), words.end());
    decoder_->AllowedLogits(context_, result.hidden, sets, logits.mutable_data());
    return logits;
  }

  // The bytes of the batch that Forward would run; nothing is computed.
  py::bytes BatchBytes(const Pieces& pieces, const std::vector<int>& tap_layers) {
    const std::vector<uint8_t> bytes = ToBytes(Batch(pieces, tap_layers));
    for (const auto& [id, tokens, parents] : pieces) cache_.Trim(sequences_.at(id).get());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // On a rank other than 0: takes part until rank 0 has gone.
  void Follow() {
    const FloatEnvironmentGuard guard;
    const GilReleased release;
    try {
      for (;;) decoder_->Follow(context_, cache_);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kWorkerDied) throw;
    }
  }

  // What another rank makes of a call's bytes: it reads them, and computes nothing.
  void ReadCall(int call, const py::bytes& given) const {
    const std::string_view view = given;
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(view.data()), view.size());
    if (call == static_cast<int>(RankCall::kForward)) ReadForward(bytes, decoder_->spec(), cache_);
    if (call == static_cast<int>(RankCall::kHead)) ReadHead(bytes, decoder_->spec());
    if (call == static_cast<int>(RankCall::kEmbed)) ReadEmbed(bytes, decoder_->spec());
  }

  std::string Audit() const { return cache_.Audit(); }
  int64_t num_window_blocks_returned() const { return cache_.num_window_blocks_returned(); }

 private:
  ForwardResult Run(const Pieces& pieces, const ForwardBatch& batch) {
    ForwardResult result = decoder_->Forward(context_, cache_, batch);
    for (const auto& [id, tokens, parents] : pieces) {
      KvSequence& kv = *sequences_.at(id);
      cache_.Commit(&kv, parents ? 0 : static_cast<int64_t>(tokens.size()));
      if (parents) cache_.Trim(&kv);
    }
    return result;
  }

  ForwardBatch Batch(const Pieces& pieces, const std::vector<int>& tap_layers) {
    BatchBuilder builder(cache_.groups().groups().size());
    builder.AddTaps(tap_layers);
    for (const auto& [id, tokens, parents] : pieces) {
      KvSequence& kv = *sequences_.at(id);
      const auto num_new = static_cast<int64_t>(tokens.size());
      CheckArgument(cache_.TryReserve(&kv, num_new, KvCache::Reclaim::kAll, parents ? num_new : 0), "the test cache is full");
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
    const Ranks* ranks = decoder_->ranks();
    return KvGroups(ranks == nullptr ? KvLayersOf(decoder_->spec()) : KvLayersOf(decoder_->spec(), &ranks->plan(), ranks->rank()), type,
                    block_size);
  }

  KernelContext context_;
  std::unique_ptr<Decoder> decoder_;
  KvCache cache_;
  std::map<int64_t, std::unique_ptr<KvSequence>> sequences_;
  int64_t next_ = 0;
};

// spec: JSON. By name: dtype, kv_dtype, table, num_threads, block_size, num_pages, activation_bits; ranks, of which this is one, and
// tensor_split.
std::unique_ptr<TestDecoder> OpenTestDecoder(const ModelFiles& files, const std::string& spec, const py::kwargs& given) {
  std::string dtype = "auto", kv_dtype = "float16", table;
  int num_threads = 2, activation_bits = 8;
  int64_t block_size = 16, num_pages = 4096;
  Keywords keywords(given, "Decoder");
  keywords.Read("dtype", &dtype);
  keywords.Read("kv_dtype", &kv_dtype);
  keywords.Read("table", &table);
  keywords.Read("num_threads", &num_threads);
  keywords.Read("block_size", &block_size);
  keywords.Read("num_pages", &num_pages);
  keywords.Read("activation_bits", &activation_bits);
  std::shared_ptr<RankGroup> group;
  std::vector<double> split;
  keywords.Read("ranks", &group);
  keywords.Read("tensor_split", &split);
  keywords.CheckAllKnown();
  KernelContext context = TestContext(table, num_threads);
  ModelSpec model = ParseSpec(spec, files.path());
  std::unique_ptr<Ranks> ranks;
  if (group != nullptr) ranks = std::make_unique<Ranks>(group, RankPlan(model, group->size(), split));
  std::unique_ptr<Decoder> decoder =
      LoadDecoder(context, files, std::move(model), ParseWeightFormat(dtype), {}, nullptr, nullptr, std::move(ranks));
  context.wide_activations = HasTwoBytes(activation_bits);
  return std::make_unique<TestDecoder>(context, std::move(decoder), ParseKvType(kv_dtype), block_size, num_pages);
}

}  // namespace

void RegisterTestingDecoder(py::module_& module) {
  py::class_<TestDecoder>(module, "Decoder")
      .def(py::init(&OpenTestDecoder), py::arg("files"), py::arg("spec"))
      .def("new_sequence", &TestDecoder::NewSequence)
      .def("free", &TestDecoder::Free)
      .def("rollback", &TestDecoder::Rollback)
      .def("forward", &TestDecoder::Forward, py::arg("pieces"), py::arg("tap_layers") = std::vector<int>{})
      .def("forward_allowed", &TestDecoder::ForwardAllowed, py::arg("pieces"), py::arg("allowed"))
      .def("batch_bytes", &TestDecoder::BatchBytes, py::arg("pieces"), py::arg("tap_layers") = std::vector<int>{})
      .def("follow", &TestDecoder::Follow)
      .def("read_call", &TestDecoder::ReadCall, py::arg("call"), py::arg("bytes"))
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
}

}  // namespace llmi
