// The hidden states of one sequence: rows of some of the target's layers by position, in the memory where its ops run.
//
// The log holds the positions [begin, end). It begins where its first row was computed: late, if the prefix cache had the tokens before.
// Each reader has a view of its own, from the first row that it still needs; rows that no reader needs are forgotten.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/aligned.h"
#include "kernels/ops/context.h"

namespace llmi {

enum class HiddenReader : uint8_t {
  kRows,     // needs each row once, and the last one again
  kLayer,    // a trained layer, which needs the rows since its last draft (model/eagle.h)
  kLastRow,  // needs the last row
};
constexpr size_t kNumHiddenReaders = 3;

// Hidden states of tokens that follow each other, where the ops run.
struct HiddenRows {
  std::vector<const float*> layers;  // of the log's layers, in order: [rows, hidden_size]
  int64_t hidden_size;
};

class HiddenLog {
 public:
  // Rows whose memory a log takes at once.
  static constexpr int64_t kRoomRows = 64;
  // Rows that the memory plan has for all sequences that trained heads draft for: 64 for each, and 256 for each of a few.
  static int64_t PlannedRows(int64_t max_num_seqs) { return kRoomRows * std::max(max_num_seqs, std::min<int64_t>(4 * max_num_seqs, 256)); }

  // Layers: 0 is the embedding's output, i the output of layer i. A layer that was named before is kept once.
  void AddReader(HiddenReader reader, const std::vector<int>& layers);
  bool has(HiddenReader reader) const { return from_[Index(reader)] >= 0; }
  // Those of all readers; empty: nothing is kept.
  const std::vector<int>& layers() const { return layers_; }
  // Whether a reader needs all rows of a prompt; else the last one will do.
  bool needs_all() const { return has(HiddenReader::kRows); }

  // The view of a reader. Without rows it begins where it ends; the end is -1 before the first row.
  int64_t begin(HiddenReader reader) const { return std::max(begin_, std::min(from_[Index(reader)], end_)); }
  int64_t end() const { return end_; }
  // The row of a position, which the log holds; those of later positions follow.
  const float* Row(int layer, int64_t position) const;
  // Rows [first, last) after this layer, on the host.
  std::vector<float> Read(const KernelContext& context, int layer, int64_t first, int64_t last) const;

  // The rows of `count` tokens, of which the first stands at `position`. Known rows stay as they are if a reader needs all. Otherwise the
  // log begins anew unless the rows follow its end.
  void Append(const KernelContext& context, const HiddenRows& rows, int64_t position, int64_t count);
  // This reader needs no row before `position`.
  void DropBefore(HiddenReader reader, int64_t position);
  // Takes over the rows of another sequence that begins alike. Readers stay.
  void CopyFrom(const KernelContext& context, const HiddenLog& other);

 private:
  static size_t Index(HiddenReader reader) { return static_cast<size_t>(reader); }
  size_t Bytes(int64_t num_rows) const { return static_cast<size_t>(num_rows * hidden_size_) * sizeof(float); }
  void BeginAt(int64_t position);
  void MakeRoom(const KernelContext& context, int64_t count, int64_t hidden_size);

  std::vector<int> layers_;
  std::vector<AlignedBuffer> rows_;  // by layer [capacity, hidden_size]
  int64_t hidden_size_ = 0;
  int64_t capacity_ = 0;
  int64_t first_ = 0;  // the place of position begin_ in rows_
  int64_t begin_ = 0;
  int64_t end_ = -1;
  std::array<int64_t, kNumHiddenReaders> from_ = {-1, -1, -1};  // by reader: the first row that it needs; -1: there is no such reader
};

}  // namespace llmi
