// The KV cache, for stateful property tests.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "cache/kv_cache.h"

namespace py = pybind11;

namespace llmi {
namespace {

// A cache whose sequences have numbers.
class TestCache {
 public:
  TestCache(const std::vector<int64_t>& windows, int64_t block_size, int64_t num_pages, bool with_prefixes)
      : cache_(KvGroups(KvLayers(windows, 1, 16), KvType::kF16, block_size), num_pages) {
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
  // A new sequence with the longest beginning of token_ids that the prefix cache knows. Returns its id and that many tokens.
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
  // The marks of all slots, by group: -1 where the block was returned to the pool.
  std::vector<std::vector<int32_t>> Marks(int64_t id) {
    KvSequence& sequence = Get(id);
    std::vector<std::vector<int32_t>> marks;
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      auto& list = marks.emplace_back();
      for (int64_t slot = 0; slot < sequence.num_tokens; ++slot) {
        const int64_t block = slot / cache_.groups().block_size();
        list.push_back(cache_.IsReturned(sequence, g, block) ? -1 : *SlotOf(sequence, g, slot));
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
}

}  // namespace llmi
