// The ranks of a model that several processes compute together, and this one's part. Rank 0 leads: it has the engine, and calls the others
// to each forward pass, head and look-up of embeddings. All compute their rows, and gather what the next step reads whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/rank_group.h"
#include "kernels/dispatch/device.h"
#include "kernels/ops/context.h"
#include "model/rank_plan.h"

namespace llmi {

// What rank 0 calls the others to.
enum class RankCall : uint32_t { kForward, kHead, kEmbed };

// Where the values of a gather are: with the ops, or on the host, though the ops may be on a device.
enum class GatherPlace : uint8_t { kThere, kHost };

class Ranks {
 public:
  Ranks(std::shared_ptr<RankGroup> group, RankPlan plan) : group_(std::move(group)), plan_(std::move(plan)) {}
  ~Ranks() {
    if (leads()) group_->Leave("");
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  RankGroup& group() const { return *group_; }
  const RankPlan& plan() const { return plan_; }
  int rank() const { return group_->rank(); }
  bool leads() const { return rank() == 0; }
  RowSpan QueryHeads(const AttentionSpec& attention) const { return plan_.QueryHeads(attention, rank()); }
  RowSpan KvHeads(const AttentionSpec& attention) const { return plan_.KvHeads(attention, rank()); }
  RowSpan Vocabulary() const { return plan_.Vocabulary(rank()); }

  // Rank 0: calls the others, with these bytes. They: wait for it.
  struct Message {
    RankCall call;
    std::vector<uint8_t> bytes;
  };
  void Call(RankCall call, std::span<const uint8_t> bytes) const;
  Message Await() const;

  // The device of this rank's ops, which the group's others have one of, too. All ranks call it, when they have loaded.
  void JoinDevice(Device* device) {
    device_ = device;
    if (device_ != nullptr) device_->JoinRanks(group_);
  }
  // Waits for the gathers of a device; throws what has ended one.
  void Finish() const {
    if (device_ != nullptr) device_->FinishGathers();
  }
  // The least advanced stage of all ranks.
  ReplayStage Agree(ReplayStage own) const;

  // Rank 0: lets new processes take the places of the others after this error, by whatever set_restart was given, which throws if it
  // cannot. Their pages hold nothing: until FindPages a forward pass throws Error(kWorkerDied). Throws the error where there is no such
  // way, or a fourth time without a forward pass between.
  void set_restart(std::function<void(const std::string& reason)> restart) { restart_ = std::move(restart); }
  void Renew(std::shared_ptr<RankGroup> group) { group_ = std::move(group); }
  void Restart(Error error);
  // Called while new processes load; its exception ends that.
  void set_check_wait(std::function<void()> check_wait) { check_wait_ = std::move(check_wait); }
  void CheckWait() const {
    if (check_wait_) check_wait_();
  }
  bool has_lost_pages() const { return has_lost_pages_; }
  void FindPages() { has_lost_pages_ = false; }
  void CheckPages() const;
  void NoteForward() { num_restarts_ = 0; }
  // Rank 0: a call that reads no pages, again with new processes if others die in it.
  template <typename Call>
  auto Complete(const Call& call) {
    for (;;) {
      try {
        return call();
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kWorkerDied || !leads()) throw;
        Restart(error);
      }
    }
  }

  // Rows of `width` values, of which span(rank) are each rank's columns: afterwards all have whole rows. to_first: rank 0 alone has.
  template <typename SpanOf>
  void GatherColumns(float* x, int64_t num_rows, int64_t width, const SpanOf& span, bool to_first = false,
                     GatherPlace place = GatherPlace::kThere) const {
    std::vector<RankGroup::Block> blocks;
    for (int rank = 0; rank < plan_.num_ranks(); ++rank) blocks.push_back(ColumnBlock(rank, span(rank), num_rows, width));
    Gather(x, blocks, to_first, place);
  }
  void GatherHidden(float* x, int64_t num_rows, int64_t hidden_size) const {
    GatherColumns(x, num_rows, hidden_size, [&](int rank) { return plan_.Hidden(rank); });
  }
  // Heads of head_size values; those that several ranks have are the first one's.
  void GatherQueryHeads(float* x, int64_t num_rows, const AttentionSpec& attention, int64_t head_size,
                        GatherPlace place = GatherPlace::kThere) const;
  void GatherKvHeads(float* x, int64_t num_rows, const AttentionSpec& attention, int64_t head_size) const;
  // Whole rows of `width` values, in the order of ranks: counts[rank] are each one's.
  void GatherRows(float* x, const std::vector<int64_t>& counts, int64_t width) const;

 private:
  void Gather(float* x, std::span<const RankGroup::Block> blocks, bool to_first, GatherPlace place) const;
  static RankGroup::Block ColumnBlock(int rank, const RowSpan& columns, int64_t num_rows, int64_t width);

  std::shared_ptr<RankGroup> group_;
  RankPlan plan_;
  Device* device_ = nullptr;
  std::function<void(const std::string& reason)> restart_;
  std::function<void()> check_wait_;
  int num_restarts_ = 0;  // since the last forward pass
  bool has_lost_pages_ = false;
};

// Of a call that all ranks take part in: if it ends with an exception here, the others end, too, for they would wait without end.
class RankCallGuard {
 public:
  explicit RankCallGuard(const Ranks* ranks);
  ~RankCallGuard();
  RankCallGuard(const RankCallGuard&) = delete;
  RankCallGuard& operator=(const RankCallGuard&) = delete;

 private:
  const Ranks* ranks_;
  int num_exceptions_;
};

// Copies columns: num_rows rows of `width` values, so far apart, where the ops run.
void CopyColumns(const KernelContext& context, const float* from, int64_t from_stride, int64_t num_rows, int64_t width, float* to,
                 int64_t to_stride);

}  // namespace llmi
