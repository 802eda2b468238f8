// The scheduler with a real page pool and without a model: the next token of a sequence is a hash of its length.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "bindings/bind_testing.h"
#include "bindings/keywords.h"
#include "engine/options.h"
#include "scheduler/scheduler.h"

namespace py = pybind11;

namespace llmi {
namespace {

class TestScheduler {
 public:
  TestScheduler(const KvGroups& groups, int64_t num_pages, const SchedulerConfig& config, bool with_prefixes)
      : cache_(groups, num_pages), config_(config), scheduler_(config_, &cache_) {
    if (with_prefixes) cache_.EnablePrefixCache(1);
    cache_.set_reclaimer([this] { return scheduler_.DropWaitingCache(); });  // as the engine does
  }
  ~TestScheduler() {
    for (auto& [id, request] : requests_) cache_.Free(&request->scheduled.kv);
  }

  int64_t Add(std::vector<int32_t> token_ids, int64_t max_new_tokens, int64_t priority, std::vector<double> key, int64_t num_drafted) {
    auto request = std::make_unique<Request>();
    request->id = next_++;
    request->tokens = std::move(token_ids);
    request->left = max_new_tokens;
    request->num_drafted = num_drafted;
    ScheduledSequence& scheduled = request->scheduled;
    scheduled.arrival = static_cast<uint64_t>(request->id);
    scheduled.priority = priority;
    scheduled.max_new_tokens = max_new_tokens;
    scheduled.num_tokens = static_cast<int64_t>(request->tokens.size());
    scheduled.token_ids = &request->tokens;
    scheduled.key = std::move(key);
    cache_.Init(&scheduled.kv);
    scheduler_.Add(&scheduled);
    const int64_t id = request->id;
    requests_[id] = std::move(request);
    return id;
  }

  void Cancel(int64_t id) { Finish(*requests_.at(id)); }

  // One iteration: ([(id, first position, tokens computed)], [ids that ended]).
  std::pair<std::vector<std::tuple<int64_t, int64_t, int64_t>>, std::vector<int64_t>> Step(int64_t prompt_budget) {
    std::vector<std::tuple<int64_t, int64_t, int64_t>> work;
    std::vector<int64_t> ended;
    const std::vector<ScheduledPiece> pieces = scheduler_.Schedule(prompt_budget);
    for (const ScheduledPiece& piece : pieces) {
      work.emplace_back(RequestOf(piece).id, piece.sequence->kv.num_tokens, piece.num_new);
    }
    scheduler_.Commit(pieces);
    for (const ScheduledPiece& piece : pieces) {
      Request& request = RequestOf(piece);
      if (piece.sequence->finished || piece.sequence->kv.num_tokens < piece.sequence->num_tokens) continue;
      request.tokens.push_back(static_cast<int32_t>(request.tokens.size() * 7919 % 1000));
      ++piece.sequence->num_tokens;
      --piece.sequence->max_new_tokens;
      --request.left;
      if (piece.num_drafted > 0) cache_.Trim(&piece.sequence->kv);  // every draft is rejected
      piece.sequence->num_drafted = std::min(request.num_drafted, std::max<int64_t>(0, request.left - 1));
      if (request.left > 0) continue;
      ended.push_back(request.id);
      if (config_.policy == SchedulingPolicy::kStatic) {
        piece.sequence->finished = true;
        piece.sequence->num_drafted = 0;
        piece.sequence->num_tokens = piece.sequence->kv.num_tokens;
      } else {
        Finish(request);
      }
    }
    scheduler_.EndStep();
    std::erase_if(requests_, [&](auto& entry) {
      if (!entry.second->scheduled.finished || scheduler_.Contains(&entry.second->scheduled)) return false;
      cache_.Free(&entry.second->scheduled.kv);
      return true;
    });
    return {work, ended};
  }

  // Seconds of num_steps iterations of the scheduler and the pool, without a model.
  double TimeSteps(int64_t num_steps) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < num_steps; ++i) {
      const std::vector<ScheduledPiece> pieces = scheduler_.Schedule();
      scheduler_.Commit(pieces);
      for (const ScheduledPiece& piece : pieces) {
        RequestOf(piece).tokens.push_back(static_cast<int32_t>(i));
        ++piece.sequence->num_tokens;
      }
      scheduler_.EndStep();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  KvCache& cache() { return cache_; }
  Scheduler& scheduler() { return scheduler_; }

 private:
  struct Request {
    int64_t id = 0;
    std::vector<int32_t> tokens;
    int64_t left = 0;
    int64_t num_drafted = 0;  // drafted for each token after the first
    ScheduledSequence scheduled;
  };
  Request& RequestOf(const ScheduledPiece& piece) { return *requests_.at(static_cast<int64_t>(piece.sequence->arrival)); }
  void Finish(Request& request) {
    scheduler_.Remove(&request.scheduled);
    cache_.Free(&request.scheduled.kv);
    requests_.erase(request.id);
  }

  KvCache cache_;
  SchedulerConfig config_;
  Scheduler scheduler_;
  std::map<int64_t, std::unique_ptr<Request>> requests_;
  int64_t next_ = 0;
};

// By name: windows, num_pages, max_num_seqs, max_num_batched_tokens, which must be given; chunked_prefill, with_prefixes,
// waiting_served_ratio.
std::unique_ptr<TestScheduler> OpenTestScheduler(const std::string& policy, const py::kwargs& given) {
  Keywords keywords(given, "Scheduler");
  const KvGroups groups(KvLayers(keywords.Take<std::vector<int64_t>>("windows"), 1, 16), KvType::kF16, 16);
  const auto num_pages = keywords.Take<int64_t>("num_pages");
  SchedulerConfig config;
  config.policy = ParsePolicy(policy);
  config.max_num_seqs = keywords.Take<int64_t>("max_num_seqs");
  config.max_num_batched_tokens = keywords.Take<int64_t>("max_num_batched_tokens");
  keywords.Read("waiting_served_ratio", &config.waiting_served_ratio);
  keywords.Read("chunked_prefill", &config.chunked_prefill);
  bool with_prefixes = true;
  keywords.Read("with_prefixes", &with_prefixes);
  keywords.CheckAllKnown();
  return std::make_unique<TestScheduler>(groups, num_pages, config, with_prefixes);
}

}  // namespace

void RegisterTestingScheduler(py::module_& module) {
  py::class_<TestScheduler>(module, "Scheduler")
      .def(py::init(&OpenTestScheduler), py::arg("policy"))
      .def("add", &TestScheduler::Add, py::arg("token_ids"), py::arg("max_new_tokens"), py::arg("priority") = 0,
           py::arg("key") = std::vector<double>(), py::arg("num_drafted") = 0)
      .def("cancel", &TestScheduler::Cancel)
      .def("step", &TestScheduler::Step, py::arg("prompt_budget") = INT64_MAX)
      .def("time_steps", &TestScheduler::TimeSteps, py::arg("num_steps"))
      .def("audit", [](TestScheduler& test) { return test.cache().Audit(); })
      .def_property_readonly("num_running", [](TestScheduler& test) { return test.scheduler().num_running(); })
      .def_property_readonly("num_waiting", [](TestScheduler& test) { return test.scheduler().num_waiting(); })
      .def_property_readonly("num_free", [](TestScheduler& test) { return test.cache().pool().num_free(); })
      .def_property_readonly("num_preemptions", [](TestScheduler& test) { return test.scheduler().num_preemptions(); })
      .def_property_readonly("num_recomputed_tokens", [](TestScheduler& test) { return test.scheduler().num_recomputed_tokens(); })
      .def_property_readonly("num_available", [](TestScheduler& test) { return test.cache().num_available(); });
}

}  // namespace llmi
