#include "bindings/engine_handle.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "bindings/gil.h"

namespace py = pybind11;

namespace llmi {

void EngineHandle::Start(const std::vector<py::bytes>& bytes, const std::map<int64_t, std::string>& special,
                         SavedPrefixOptions saved_prefixes) {
  TokenBytes tokens;
  for (const py::bytes& token : bytes) tokens.bytes.emplace_back(token);
  tokens.special.resize(std::max(static_cast<size_t>(vocab_size()), bytes.size()));
  for (const auto& [id, text] : special) {
    if (id >= 0 && static_cast<size_t>(id) < tokens.special.size()) tokens.special[static_cast<size_t>(id)] = text;
  }
  opened_->Start(std::move(tokens), std::move(saved_prefixes));
}

void EngineHandle::Close(double patience_s) {
  constexpr double kCheckIntervalS = 0.05;
  constexpr double kHookPatienceS = 0.5;
  Engine* engine = opened_->engine();
  if (engine == nullptr || abandoned_ || engine->IsForked()) return;
  engine->BeginClose();
  if (engine->OnEngineThread()) return;
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    bool ended = false;
    {
      const GilReleased released;
      ended = engine->WaitEnded(kCheckIntervalS);
    }
    if (ended) break;
    const double waited_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (waited_s > patience_s) {
      abandoned_ = true;
      return;
    }
    if (waited_s > kHookPatienceS) HookScope::Interrupt(engine->native_thread(), nullptr);
    CheckSignals();
  }
  const GilReleased released;
  engine->Close();
}

bool EngineHandle::InterruptHook(const std::vector<uint64_t>& request_ids) {
  Engine* engine = opened_->engine();
  if (engine == nullptr || engine->IsForked() || engine->OnEngineThread()) return false;
  return HookScope::Interrupt(engine->native_thread(), &request_ids);
}

void EngineHandle::Delete(EngineHandle* handle) {
  Engine* engine = handle->opened_->engine();
  if (handle->abandoned_ || (engine != nullptr && engine->IsForked())) return;
  if (engine != nullptr && engine->OnEngineThread()) {
    engine->BeginClose();
    std::thread([handle] { delete handle; }).detach();
  } else if (PyGILState_Check() != 0) {
    const GilReleased released;
    delete handle;
  } else {
    delete handle;
  }
}

py::dict EngineHandle::Info() const {
  const EngineInfo& info = opened_->info();
  py::dict dict;
  dict["max_model_len"] = info.max_model_len;
  dict["num_pages"] = info.num_pages;
  dict["block_size"] = info.block_size;
  dict["weight_bytes"] = info.weight_bytes;
  dict["step_weight_bytes"] = info.step_weight_bytes;
  dict["draft_weight_bytes"] = info.draft_weight_bytes;
  dict["draft_kv_bytes"] = info.draft_kv_bytes;
  dict["weight_types"] = info.weight_types;
  dict["has_quantized_layers"] = info.has_quantized_layers;
  py::dict unpacked;
  for (const auto& [name, bytes] : info.unpacked) unpacked[name.c_str()] = py::make_tuple(bytes.in_file, bytes.in_memory);
  dict["unpacked"] = unpacked;
  dict["table"] = info.table;
  dict["device"] = info.device;
  dict["num_threads"] = info.num_threads;
  dict["page_bytes"] = info.page_bytes;
  dict["state_bytes"] = info.state_bytes;
  dict["num_state_slots"] = info.num_state_slots;
  dict["state_pool_bytes"] = info.state_pool_bytes;
  dict["kv_bytes_per_token"] = info.kv_bytes_per_token;
  dict["kv_wasted_share"] = info.kv_wasted_share;
  py::list ranks;
  for (const RankFacts& facts : info.ranks) {
    py::dict rank;
    rank["host"] = facts.host;
    rank["pid"] = facts.pid;
    rank["stage"] = facts.stage;
    rank["weight_bytes"] = facts.weight_bytes;
    rank["kv_bytes"] = facts.kv_bytes;
    rank["query_heads"] = facts.query_heads;
    rank["kv_heads"] = facts.kv_heads;
    rank["hidden"] = facts.hidden;
    rank["vocabulary"] = facts.vocabulary;
    ranks.append(rank);
  }
  dict["ranks"] = ranks;
  return dict;
}

}  // namespace llmi
