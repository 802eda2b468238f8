// Hidden states of the target that a drafter reads: those of committed tokens, each once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace llmi {

// The rows of tokens that follow each other.
struct HiddenChunk {
  int64_t first_row = 0;  // position of the first row's token
  int64_t num_rows = 0;
  std::map<int, std::vector<float>> layers;  // {layer: [num_rows, hidden_size]}, before any norm
};

// Rows that follow each other without a gap. The chunks are shared: the samples of a request begin with the same ones.
using HiddenChunks = std::vector<std::shared_ptr<const HiddenChunk>>;

// The rows of one sequence that wait for its drafter. Positions ascend, and no position comes twice.
class WaitingRows {
 public:
  // The position of the next row; -1 before the first one.
  int64_t next() const { return next_; }
  const HiddenChunks& chunks() const { return chunks_; }
  // chunk.first_row: next(), if that is not -1.
  void Add(HiddenChunk chunk) {
    next_ = chunk.first_row + chunk.num_rows;
    chunks_.push_back(std::make_shared<const HiddenChunk>(std::move(chunk)));
  }
  // The drafter has them.
  void Clear() { chunks_.clear(); }

 private:
  HiddenChunks chunks_;
  int64_t next_ = -1;
};

// What a drafter sees of them.
struct HiddenView {
  // {layer: [hidden_size]}: hidden states of the row that the last token was drawn from, for the layers that some drafter of the step
  // needs.
  const std::map<int, std::vector<float>>* last = nullptr;
  // Of committed tokens, for the same layers: those that the drafter has not been given yet. The last token has none yet.
  const HiddenChunks* rows = nullptr;
  int64_t begin = 0;  // the position of the first of these rows, or that of the next one if there is none
};

}  // namespace llmi
