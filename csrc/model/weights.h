// A model's packed weights, read once from a tensor file.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/huge_arena.h"
#include "io/tensor_file.h"
#include "model/architecture.h"
#include "model/config.h"
#include "model/pack.h"

namespace llmi {

// A vector of weights (a norm or a bias) in fp32.
class WeightVector {
 public:
  WeightVector() = default;
  WeightVector(const KernelContext& context, const std::vector<float>& values)
      : data_(PlaceWeights(context, values.data(), values.size() * sizeof(float))) {}
  bool empty() const { return data_.size() == 0; }
  const float* data() const { return data_.as<float>(); }

 private:
  AlignedBuffer data_;
};

struct LinearWeights {
  PackedMatrix matrix;
  WeightVector bias;  // [num_rows] or empty
};

struct LayerWeights {
  WeightVector attention_norm;        // [hidden]
  LinearWeights query, key, value;    // [heads * head_dim, hidden]
  LinearWeights attention_output;     // [hidden, heads * head_dim]
  WeightVector query_norm, key_norm;  // [head_dim], with qk_norm
  WeightVector post_attention_norm;   // [hidden], with sandwich_norms
  WeightVector mlp_norm;              // [hidden]
  LinearWeights gate, up;             // [intermediate, hidden]
  LinearWeights down;                 // [hidden, intermediate]
  WeightVector post_mlp_norm;         // [hidden], with sandwich_norms
};

// The size of matrices that were unpacked at load.
struct UnpackedBytes {
  uint64_t in_file = 0;
  uint64_t in_memory = 0;
};

struct ModelWeights {
  std::unique_ptr<HugeArena> arena;  // host memory of the matrices
  PackedMatrix embedding;            // [vocab, hidden]
  PackedMatrix head;                 // [vocab, hidden]; empty when tied to the embedding
  WeightVector final_norm;
  std::vector<LayerWeights> layers;

  uint64_t num_bytes() const;
  // Names of the packed types in use, as in "q4_1+q8_0", for the numerics id.
  std::string TypeNames() const;
  // Whether some matrix that is multiplied is quantised. The embedding counts only if it is also the head; otherwise it is only looked up.
  bool HasQuantizedLayers() const;
  // The matrices that take more memory than the file does, since no kernel reads their type: by name of that type.
  std::map<std::string, UnpackedBytes> Unpacked() const;
};

// Finds every tensor of the model and reads none. Throws Error(kModelFile) naming the tensor that is missing or does not match the config.
void LocateWeights(const TensorFile& file, const TensorNames& names, const ModelConfig& config);

// Whether `head` is a copy of the embedding: the same values in the same type.
bool IsEmbeddingAgain(const TensorView& head, const TensorFile& file, const TensorNames& names, const ModelConfig& config);

// The memory that a model's weights will take, known before any is read.
struct WeightPlan {
  std::map<std::string, uint64_t> bytes_by_type;  // by name of the packed type
  uint64_t num_bytes() const;
};
WeightPlan PlanWeights(const KernelContext& context, const TensorFile& file, const TensorNames& names, const ModelConfig& config,
                       WeightFormat format, const std::vector<int64_t>& source_layers = {});

// A tensor that a model of this config has: its name and shape.
struct ExpectedTensor {
  std::string name;
  std::vector<uint64_t> shape;
};
std::vector<ExpectedTensor> ExpectedTensors(const TensorNames& names, const ModelConfig& config);

// source_layers: for each layer of the config its number in the file; empty: the same numbers.
// dropped: checked before each matrix. True means that the caller no longer wants the model: throws Error(kInterrupted). May be null.
// Throws Error(kModelFile) naming the tensor that is missing or does not match the config.
ModelWeights LoadWeights(const KernelContext& context, const TensorFile& file, const TensorNames& names, const ModelConfig& config,
                         WeightFormat format, const std::vector<int64_t>& source_layers = {}, const std::atomic<bool>* dropped = nullptr);

}  // namespace llmi
