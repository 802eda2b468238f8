// Gathers of several ranks that have a device each (Device::Gather): columns are packed, exchanged, and unpacked, all in the order of the
// device's other work, so that a recorded step has its gathers in it. NCCL exchanges, or the host by the ranks' shared memory.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/aligned.h"
#include "core/rank_group.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/rank_exchange.h"

namespace llmi::cuda {

template <typename Runtime>
class RankGathers {
 public:
  // nccl: the library, or empty.
  RankGathers(Runtime& runtime, std::shared_ptr<RankGroup> group, const std::string& nccl) : runtime_(runtime), group_(std::move(group)) {
    if (!nccl.empty()) nccl_.emplace(nccl, *group_);
  }
  RankGathers(const RankGathers&) = delete;
  RankGathers& operator=(const RankGathers&) = delete;

  void Gather(void* buffer, std::span<const RankGroup::Block> blocks, bool to_first, MemorySource* memory) {
    RankExchange exchange = Plan(blocks, to_first);
    if (exchange.num_bytes == 0) return;
    if (static_cast<int64_t>(packed_.size()) < exchange.num_bytes) {
      packed_.Reserve(static_cast<size_t>(exchange.num_bytes), "columns of all ranks", memory);  // drops recordings that name it
      if (!nccl_) runtime_.ReserveForHost(packed_.size());
    }
    exchange.packed = packed_.data();
    auto* rows = static_cast<uint8_t*>(buffer);
    ForEachBlock(blocks, exchange, [&](const RankGroup::Block& block, uint8_t* packed) {
      if (block.owner == group_->rank())
        runtime_.CopyRows(packed, block.row_bytes, rows + block.offset, block.stride, block.row_bytes, block.num_rows);
    });
    if (nccl_) {
      runtime_.Exchange(*nccl_, exchange);
    } else {
      runtime_.ExchangeByHost(exchange, group_->rank(), [this, exchange](uint8_t* host) { GatherThere(exchange, host); });
    }
    if (to_first && group_->rank() > 0) return;
    ForEachBlock(blocks, exchange, [&](const RankGroup::Block& block, uint8_t* packed) {
      if (block.owner != group_->rank())
        runtime_.CopyRows(rows + block.offset, block.stride, packed, block.row_bytes, block.row_bytes, block.num_rows);
    });
  }

  // Waits for the device. Throws what has ended a gather: that of another rank's death is Error(kWorkerDied).
  void Finish() {
    try {
      runtime_.Finish([this] {
        group_->CheckOthers();
        if (nccl_) nccl_->CheckUnderWay();
      });
    } catch (...) {
      nccl_.reset();  // which ends what waits on the device
      throw;
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  RankExchange Plan(std::span<const RankGroup::Block> blocks, bool to_first) const {
    RankExchange exchange = {nullptr, 0, {}, to_first};
    for (int owner = 0; owner < group_->size(); ++owner) {
      const int64_t begin = exchange.num_bytes;
      for (const RankGroup::Block& block : blocks) {
        if (block.owner == owner) exchange.num_bytes += block.row_bytes * block.num_rows;
      }
      if (exchange.num_bytes > begin) exchange.parts.push_back({owner, begin, exchange.num_bytes - begin});
    }
    return exchange;
  }

  // Calls visit(block, its place among the parts).
  template <typename Visit>
  void ForEachBlock(std::span<const RankGroup::Block> blocks, const RankExchange& exchange, const Visit& visit) const {
    for (const RankGroup::Block& part : exchange.parts) {
      uint8_t* next = exchange.packed + part.offset;
      for (const RankGroup::Block& block : blocks) {
        const int64_t num_bytes = block.row_bytes * block.num_rows;
        if (block.owner != part.owner || num_bytes == 0) continue;
        visit(block, next);
        next += num_bytes;
      }
    }
  }

  // Where the device's work runs nothing may be thrown: Finish does. Later gathers of the step are left out.
  void GatherThere(const RankExchange& exchange, uint8_t* host) noexcept {
    if (error_) return;
    try {
      group_->Gather(host, exchange.parts, exchange.to_first);
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  Runtime& runtime_;
  std::shared_ptr<RankGroup> group_;
  std::optional<Nccl> nccl_;
  AlignedBuffer packed_;
  std::exception_ptr error_;
};

}  // namespace llmi::cuda
