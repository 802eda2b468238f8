// What a model's forwards cost by arithmetic, whatever they took: operations, and the bytes that they cannot help reading.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_groups.h"
#include "model/forward_batch.h"
#include "model/weights.h"

namespace llmi {

// operations: two for each product of a weight and an input, and for each product in attention. read_bytes: each matrix once for each
// forward (of experts those that some row uses), and K and V of the tokens that some row of a segment sees, once.
struct Work {
  int64_t num_forwards = 0;
  int64_t num_rows = 0;  // of them
  double operations = 0;
  double read_bytes = 0;

  Work operator-(const Work& earlier) const {
    return {num_forwards - earlier.num_forwards, num_rows - earlier.num_rows, operations - earlier.operations,
            read_bytes - earlier.read_bytes};
  }
};

// Adds up the work of a decoder. The engine thread alone.
class WorkCounter {
 public:
  // Weights and spec are read here and not kept.
  WorkCounter(const ModelWeights& weights, const ModelSpec& spec);

  // One layer's experts in a forward: experts whose weights were read, each once, and the pairs of a row and an expert.
  void AddExperts(int64_t layer, int64_t num_read, int64_t num_pairs);
  // The layers' part of a forward, but for experts.
  void AddForward(const ForwardBatch& batch, const KvGroups& groups);
  // The head's part: num_tiles tiles of `matrix` were read, and their rows multiplied with num_products pairs of a tile and a hidden row.
  void AddHead(const PackedMatrix& matrix, int64_t num_tiles, int64_t num_products);

  const Work& done() const { return done_; }

 private:
  // Layers with the same window.
  struct Attention {
    int64_t window = 0;
    double width = 0;  // of all queries of a row
    std::vector<int> layers;
  };
  std::vector<Attention> attention_;
  double row_operations_ = 0;  // of one row in the matrices of all layers
  double layer_bytes_ = 0;     // of the matrices of all layers
  struct Expert {
    double operations = 0;  // of one row
    double bytes = 0;
  };
  std::vector<Expert> experts_;  // one of each layer
  Work done_;
};

}  // namespace llmi
