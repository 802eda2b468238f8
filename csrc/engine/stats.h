// Counters of the engine, and where other threads read them.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace llmi {

// Every metric of the core, once: type, name, meaning. EngineStats has a field for each, LLM.get_metrics() a key, and docs/metrics.md a
// line (a test compares them).
// clang-format off
#define LLMI_METRICS(X) \
  X(int64_t, num_steps, "steps of the engine") \
  X(int64_t, num_step_rows, "rows of the last step: tokens that it computed") \
  X(int64_t, num_prompt_tokens, "prompt tokens that were computed, recomputed ones included") \
  X(int64_t, num_generated_tokens, "tokens that were generated") \
  X(int64_t, num_finished_requests, "requests that ended") \
  X(int64_t, num_preemptions, "how often a running sequence lost its blocks to others") \
  X(int64_t, num_recomputed_tokens, "tokens that were computed again after a preemption") \
  X(int64_t, num_restored_tokens, "tokens of preempted sequences whose blocks came back from the host") \
  X(int64_t, num_copies_left_out, "preemptions without a copy to the host, because computing again looked faster") \
  X(int64_t, num_device_draws, "rows that the device has drawn or ranked; the logits of other rows came to the host") \
  X(int64_t, num_steps_ahead, "steps that were launched before the tokens of the step before were known") \
  X(int64_t, num_small_heads, "rows whose masks allow few tokens: only these tokens' logits were computed") \
  X(int64_t, num_skipped_heads, "those among them with one token, which need no logits") \
  X(int64_t, num_graph_replays, "recorded launches that the device replayed") \
  X(int64_t, num_device_waits, "how often the host waited for the device") \
  X(double, device_idle_s, "time in which the device had no work, after a draw or a download, until the next launch") \
  X(int64_t, num_copies_on_write, "pages that were copied because a sequence wrote to a shared one") \
  X(int64_t, num_window_blocks_returned, "blocks that went back to the pool because an attention window had passed them") \
  X(int64_t, num_running, "sequences that run now") \
  X(int64_t, num_waiting, "sequences that wait now") \
  X(int64_t, num_queued, "requests that no step has begun") \
  X(double, stalled_s, "time since the engine thread last moved; 0 while it has nothing to do") \
  X(int64_t, num_pages, "pages of the KV cache") \
  X(int64_t, num_free_pages, "pages that are free, or that the prefix cache alone holds") \
  X(int64_t, num_cached_pages, "pages that the prefix cache alone holds: they are free as soon as they are needed") \
  X(int64_t, num_prefix_blocks, "blocks in the prefix tree") \
  X(int64_t, num_prefix_queried_tokens, "prompt tokens that were looked up in the prefix tree") \
  X(int64_t, num_prefix_hit_tokens, "prompt tokens that were found in the prefix tree") \
  X(int64_t, num_prefix_evictions, "blocks that were evicted from the prefix tree") \
  X(int64_t, num_free_state_slots, "versions of states that the pool still has room for") \
  X(int64_t, num_state_snapshots, "versions of states that the prefix tree holds: they are free as soon as they are needed") \
  X(int64_t, num_saved_blocks, "blocks that were written to prefix_cache_dir") \
  X(int64_t, num_unsaved_blocks, "blocks that could not be written there: the disk was full, read-only or too slow") \
  X(int64_t, num_fetched_blocks, "blocks that were read from prefix_cache_dir") \
  X(int64_t, num_fetches_left_out, "how often blocks were not read because computing them looked faster") \
  X(int64_t, num_missing_blocks, "blocks of a saved beginning whose file was gone") \
  X(int64_t, num_cut_blocks, "blocks whose file was shorter or longer than it says") \
  X(int64_t, num_damaged_blocks, "blocks whose file has a wrong checksum or no header") \
  X(int64_t, num_exchanged_blocks, "blocks whose file is of another text or model than its name") \
  X(int64_t, num_late_blocks, "blocks that had not been read when computing them would have ended") \
  X(int64_t, num_asked_prefills, "prompts whose blocks another engine was asked for (kv_transfer_config)") \
  X(int64_t, num_late_prefills, "those that had not come when computing them would have ended") \
  X(int64_t, num_failed_prefills, "those whose engine had gone, or answered with an error") \
  X(int64_t, num_foreign_prefills, "those whose engine has another model, arithmetic or version, or is this one") \
  X(int64_t, num_short_prefills, "those of which fewer blocks came than the engine said") \
  X(int64_t, num_shared_pages, "pages that several sequences hold") \
  X(double, wasted_share, "share of the slots in used pages that hold no token") \
  X(double, busy_time_s, "time of all steps") \
  X(double, hook_time_s, "the part of busy_time_s in user code: processors, samplers, criteria") \
  X(int64_t, num_forwards, "forwards of the model, those for sequences of the lab among them") \
  X(int64_t, num_forward_rows, "tokens that these forwards computed") \
  X(double, num_operations, "operations of all steps by arithmetic: two for each product of a weight, or of a query or an attention weight, with a number") \
  X(double, num_read_bytes, "bytes that all steps cannot help reading: each matrix once a forward, and K and V once that a sequence's rows see") \
  X(std::string, saved_blocks_problem, "why the first unsaved block could not be written; empty if all could") \
  X(std::string, audit, "what is wrong with the KV cache; empty if nothing is")
// clang-format on

struct EngineStats {
  std::vector<double> stages_busy_s;  // that each stage of a pipeline has computed layers; empty: there is one stage
#define LLMI_FIELD(type, name, meaning) type name{};
  LLMI_METRICS(LLMI_FIELD)
#undef LLMI_FIELD
};

// Calls visit(name, value, meaning) for each metric.
template <typename Visit>
void VisitMetrics(const EngineStats& stats, const Visit& visit) {
#define LLMI_VISIT(type, name, meaning) visit(#name, stats.name, meaning);
  LLMI_METRICS(LLMI_VISIT)
#undef LLMI_VISIT
}

// The latest counters that the engine thread has published; any thread reads them.
class StatsBoard {
 public:
  void Publish(const EngineStats& stats) {
    const std::lock_guard lock(mutex_);
    latest_ = stats;
  }
  EngineStats Latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

 private:
  mutable std::mutex mutex_;
  EngineStats latest_;
};

}  // namespace llmi
