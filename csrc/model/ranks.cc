#include "model/ranks.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/errors.h"

namespace llmi {
namespace {

struct CallHeader {
  RankCall call;
  uint32_t unused;
  int64_t num_bytes;
};

constexpr int64_t kMostMessageBytes = int64_t{1} << 34;
constexpr int kMostRestarts = 3;
constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

}  // namespace

void Ranks::Call(RankCall call, std::span<const uint8_t> bytes) const {
  CallHeader header = {call, 0, static_cast<int64_t>(bytes.size())};
  group_->Tell(&header, sizeof header);
  group_->Tell(const_cast<uint8_t*>(bytes.data()), header.num_bytes);
}

Ranks::Message Ranks::Await() const {
  CallHeader header = {};
  group_->Tell(&header, sizeof header);
  CheckArgument(header.call <= RankCall::kEmbed && header.num_bytes >= 0 && header.num_bytes <= kMostMessageBytes,
                "ranks: a call that there is not");
  Message message = {header.call, std::vector<uint8_t>(static_cast<size_t>(header.num_bytes))};
  group_->Tell(message.bytes.data(), header.num_bytes);
  return message;
}

void Ranks::Restart(Error error) {
  for (;;) {
    if (!restart_ || error.kind() != ErrorKind::kWorkerDied || ++num_restarts_ > kMostRestarts) throw Error(error);
    has_lost_pages_ = true;
    try {
      restart_(error.what());
      return;
    } catch (const Error& again) {
      error = again;
    }
  }
}

void Ranks::CheckPages() const {
  if (has_lost_pages_) throw Error(ErrorKind::kWorkerDied, "another rank died, and its part of the cache is computed again");
}

RankGroup::Block Ranks::ColumnBlock(int rank, const RowSpan& columns, int64_t num_rows, int64_t width) {
  return {rank, columns.begin * kFloat, columns.size() * kFloat, num_rows, width * kFloat};
}

void Ranks::GatherQueryHeads(float* x, int64_t num_rows, const AttentionSpec& attention, int64_t head_size, GatherPlace place) const {
  const auto span = [&](int rank) {
    const RowSpan heads = plan_.QueryHeads(attention, rank);
    return RowSpan{heads.begin * head_size, heads.end * head_size};
  };
  GatherColumns(x, num_rows, attention.num_heads * head_size, span, false, place);
}

void Ranks::GatherKvHeads(float* x, int64_t num_rows, const AttentionSpec& attention, int64_t head_size) const {
  int64_t next = 0;
  GatherColumns(x, num_rows, attention.num_kv_heads * head_size, [&](int rank) {
    const RowSpan heads = plan_.KvHeads(attention, rank);
    const RowSpan first = {std::max(next, heads.begin), std::max(next, heads.end)};
    next = first.end;
    return RowSpan{first.begin * head_size, first.end * head_size};
  });
}

void Ranks::GatherRows(float* x, const std::vector<int64_t>& counts, int64_t width) const {
  std::vector<RankGroup::Block> blocks;
  int64_t offset = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const int64_t num_bytes = counts[rank] * width * kFloat;
    blocks.push_back({static_cast<int>(rank), offset, num_bytes});
    offset += num_bytes;
  }
  Gather(x, blocks, false, GatherPlace::kThere);
}

void Ranks::Gather(float* x, std::span<const RankGroup::Block> blocks, bool to_first, GatherPlace place) const {
  if (device_ == nullptr) return group_->Gather(x, blocks, to_first);
  if (place == GatherPlace::kThere) return device_->Gather(x, blocks, to_first);
  Finish();  // the group's gathers have one order
  group_->Gather(x, blocks, to_first);
}

ReplayStage Ranks::Agree(ReplayStage own) const {
  std::vector<uint8_t> stages(static_cast<size_t>(plan_.num_ranks()), static_cast<uint8_t>(own));
  std::vector<RankGroup::Block> blocks;
  for (int rank = 0; rank < plan_.num_ranks(); ++rank) blocks.push_back({rank, rank, 1});
  group_->Gather(stages.data(), blocks);
  return static_cast<ReplayStage>(*std::ranges::min_element(stages));
}

RankCallGuard::RankCallGuard(const Ranks* ranks) : ranks_(ranks), num_exceptions_(std::uncaught_exceptions()) {}

RankCallGuard::~RankCallGuard() {
  if (ranks_ != nullptr && std::uncaught_exceptions() > num_exceptions_) ranks_->group().Leave("a step of it failed");
}

void CopyColumns(const KernelContext& context, const float* from, int64_t from_stride, int64_t num_rows, int64_t width, float* to,
                 int64_t to_stride) {
  if (context.device != nullptr) {
    return context.device->CopyRows(to, to_stride * kFloat, from, from_stride * kFloat, width * kFloat, num_rows);
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    std::memcpy(to + row * to_stride, from + row * from_stride, static_cast<size_t>(width) * sizeof(float));
  }
}

}  // namespace llmi
