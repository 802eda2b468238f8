#include "speculative/hidden_log.h"

#include <algorithm>
#include <utility>

#include "kernels/dispatch/transfer.h"

namespace llmi {

void HiddenLog::AddReader(HiddenReader reader, const std::vector<int>& layers) {
  from_[Index(reader)] = 0;
  for (const int layer : layers) {
    if (std::ranges::find(layers_, layer) == layers_.end()) layers_.push_back(layer);
  }
  rows_.resize(layers_.size());
}

const float* HiddenLog::Row(int layer, int64_t position) const {
  const auto index = static_cast<size_t>(std::ranges::find(layers_, layer) - layers_.begin());
  return rows_[index].as<float>() + (first_ + position - begin_) * hidden_size_;
}

std::vector<float> HiddenLog::Read(const KernelContext& context, int layer, int64_t first, int64_t last) const {
  std::vector<float> rows(static_cast<size_t>((last - first) * hidden_size_));
  if (!rows.empty()) ToHost(context, rows.data(), Row(layer, first), rows.size() * sizeof(float));
  return rows;
}

void HiddenLog::BeginAt(int64_t position) {
  first_ = 0;
  begin_ = end_ = position;
  for (int64_t& from : from_) from = from < 0 ? from : position;
}

// For `count` more rows. What few rows need is moved to the front now and then; memory that they no longer need is given back.
void HiddenLog::MakeRoom(const KernelContext& context, int64_t count, int64_t hidden_size) {
  const int64_t held = end_ - begin_;
  if (first_ + held + count <= capacity_) return;
  hidden_size_ = hidden_size;
  const int64_t needed = (held + count + kRoomRows - 1) / kRoomRows * kRoomRows;
  const bool fits = needed == capacity_ && held <= first_;  // what is moved to the front may not overlap
  capacity_ = needed;
  for (AlignedBuffer& rows : rows_) {
    AlignedBuffer more;
    if (!fits) more.Reserve(Bytes(capacity_), "hidden states", context.device);
    float* to = fits ? rows.as<float>() : more.as<float>();
    if (held > 0) CopyThere(context, to, rows.as<float>() + first_ * hidden_size, Bytes(held));
    if (!fits) rows = std::move(more);
  }
  first_ = 0;
}

void HiddenLog::Append(const KernelContext& context, const HiddenRows& rows, int64_t position, int64_t count) {
  if (layers_.empty()) return;
  const int64_t known = needs_all() && position <= end_ ? std::min(end_ - position, count) : 0;
  const int64_t skipped = needs_all() ? known : count - 1;
  if (position + skipped != end_ && known == 0) BeginAt(position + skipped);
  const int64_t num_new = count - skipped;
  if (num_new <= 0) return;
  MakeRoom(context, num_new, rows.hidden_size);
  for (size_t i = 0; i < layers_.size(); ++i) {
    float* to = rows_[i].as<float>() + (first_ + end_ - begin_) * hidden_size_;
    CopyThere(context, to, rows.layers[i] + skipped * hidden_size_, Bytes(num_new));
  }
  end_ += num_new;
  DropBefore(HiddenReader::kLastRow, end_ - 1);
}

void HiddenLog::DropBefore(HiddenReader reader, int64_t position) {
  if (int64_t& from = from_[Index(reader)]; from >= 0) from = std::max(from, position);
  int64_t needed = end_ - 1;
  for (const int64_t from : from_) needed = from < 0 ? needed : std::min(needed, from);
  if (needed <= begin_) return;
  first_ += needed - begin_;
  begin_ = needed;
}

void HiddenLog::CopyFrom(const KernelContext& context, const HiddenLog& other) {
  if (layers_.empty() || other.end_ < 0) return;
  BeginAt(other.begin_);
  from_ = other.from_;
  const int64_t held = other.end_ - other.begin_;
  MakeRoom(context, held, other.hidden_size_);
  for (size_t i = 0; i < layers_.size(); ++i) {
    CopyThere(context, rows_[i].as<float>(), other.Row(layers_[i], other.begin_), Bytes(held));
  }
  end_ = other.end_;
}

}  // namespace llmi
