// The configuration of an engine, with all sizes resolved.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cache/kv_groups.h"
#include "cache/state_pool.h"
#include "engine/policy.h"
#include "engine/request.h"
#include "engine/saved_prefix_options.h"
#include "kernels/layout/kv_layout.h"
#include "scheduler/scheduler.h"

namespace llmi {

struct EngineConfig {
  SchedulerConfig scheduler;
  int64_t max_model_len = 0;
  int64_t num_pages = 0;
  StateSizes states;  // of layers that have one
  int64_t state_snapshot_interval = 0;
  int64_t block_size = 16;
  KvType kv_type = KvType::kF16;
  DraftKvShape draft_kv;  // of the drafter that was loaded with the model, if one was
  std::shared_ptr<PolicyHook> policy_hook;
  std::shared_ptr<BatchHook> batch_hook;
  bool prefix_caching = true;
  SavedPrefixOptions saved_prefixes;
  bool audit_each_step = false;  // for tests
  bool small_heads = true;       // rows whose masks allow few tokens have a part of the head computed (rows/row_heads.h)
  // Called ten times a second by a thread that waits for the engine; its exception ends the wait. May be empty.
  std::function<void()> check_wait;
};

}  // namespace llmi
