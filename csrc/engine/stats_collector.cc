#include "engine/stats_collector.h"

namespace llmi {

StatsCollector::StatsCollector(const Device* device, const KvCache& cache, const Scheduler& scheduler, const ActiveRequests& requests,
                               const StepCosts& costs, StepLoop& steps, SavedPrefixes* saved, bool audits_each_step)
    : device_(device),
      cache_(cache),
      scheduler_(scheduler),
      requests_(requests),
      costs_(costs),
      steps_(steps),
      saved_(saved),
      audits_each_step_(audits_each_step) {}

void StatsCollector::Publish() {
  steps_.Count(&stats_);
  stats_.num_preemptions = scheduler_.num_preemptions();
  stats_.num_recomputed_tokens = scheduler_.num_recomputed_tokens();
  if (device_ != nullptr) {
    const DeviceCounts& counts = device_->counts();
    stats_.num_graph_replays = counts.num_replays;
    stats_.num_device_waits = counts.num_waits;
    stats_.device_idle_s = counts.idle_s;
  }
  stats_.num_restored_tokens = scheduler_.num_restored_tokens();
  stats_.num_copies_left_out = costs_.num_copies_left_out();
  stats_.num_copies_on_write = cache_.num_copies_on_write();
  stats_.num_window_blocks_returned = cache_.num_window_blocks_returned();
  stats_.num_running = scheduler_.num_running();
  stats_.num_waiting = scheduler_.num_waiting();
  stats_.num_finished_requests = requests_.num_finished();
  stats_.num_pages = cache_.pool().num_pages();
  stats_.num_free_pages = cache_.num_available();
  stats_.num_cached_pages = cache_.pool().num_cached();
  stats_.num_prefix_queried_tokens = scheduler_.num_prefix_queries();
  stats_.num_prefix_hit_tokens = scheduler_.num_prefix_hits();
  if (const PrefixTree* tree = cache_.prefix_tree()) {
    stats_.num_prefix_blocks = tree->num_nodes();
    stats_.num_prefix_evictions = tree->num_evicted();
    stats_.num_state_snapshots = tree->num_states();
  }
  if (const StatePool* states = cache_.states()) stats_.num_free_state_slots = states->slots().num_free();
  if (saved_ != nullptr) saved_->Count(&stats_);
  if (audits_each_step_ && stats_.num_steps != num_audited_steps_ && stats_.audit.empty()) {
    num_audited_steps_ = stats_.num_steps;
    stats_.audit = cache_.Audit();
  }
  board_.Publish(stats_);
}

void StatsCollector::PublishWithPages() {
  stats_.num_shared_pages = cache_.pool().num_shared();
  stats_.wasted_share = cache_.WastedShare();
  if (stats_.audit.empty()) stats_.audit = cache_.Audit();
  Publish();
}

void StatsCollector::PublishEnd() {
  steps_.Count(&stats_);
  stats_.num_finished_requests = requests_.num_finished();
  if (saved_ != nullptr) saved_->Count(&stats_);
  board_.Publish(stats_);
}

}  // namespace llmi
