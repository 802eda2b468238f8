// Opens an engine: from a model's files and the options to a running thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/options.h"
#include "engine/rank_worker.h"
#include "io/model_files.h"
#include "model/draft_heads.h"
#include "model/spec.h"
#include "model/weights.h"

namespace llmi {

// Sizes and names that loading has chosen or measured.
struct EngineInfo {
  int64_t max_model_len = 0;
  int64_t num_pages = 0;
  int64_t block_size = 0;
  uint64_t weight_bytes = 0;
  uint64_t step_weight_bytes = 0;   // read by one step; an embedding with a separate head is only looked up
  uint64_t draft_weight_bytes = 0;  // of the drafters that were loaded with the model
  int64_t draft_kv_bytes = 0;       // their part of the cache
  std::string weight_types;         // as ModelWeights::TypeNames
  bool has_quantized_layers = false;
  std::map<std::string, UnpackedBytes> unpacked;  // as ModelWeights::Unpacked
  std::string table;                              // of the CPU's kernels
  std::string device;                             // "cpu", or the device's own name
  int num_threads = 0;
  int64_t page_bytes = 0;
  int64_t state_bytes = 0;       // of one version of a sequence's states, as a snapshot has; 0: no layer has one
  int64_t num_state_slots = 0;   // versions that the pool holds
  int64_t state_pool_bytes = 0;  // with the logs of inputs
  int64_t kv_bytes_per_token = 0;
  double kv_wasted_share = 0;    // of pages, which hold whole layers
  std::vector<RankFacts> ranks;  // of all of them, if there are several
};

// A loaded model, and its engine from Start on. Owns the device and everything in the device's memory.
class OpenedEngine {
 public:
  // See OpenEngine.
  OpenedEngine(const ModelFiles& files, const EngineOptions& options, const std::atomic<bool>* dropped);
  OpenedEngine(const OpenedEngine&) = delete;
  OpenedEngine& operator=(const OpenedEngine&) = delete;

  // Starts the engine's thread. Call it once. tokens: the bytes of each token id; ids beyond the end have no text.
  // saved_prefixes: Error(kInvalidArgument) for its folder, kUnsupportedModel where layers have states.
  void Start(TokenBytes tokens, SavedPrefixOptions saved_prefixes = {});
  // Null until Start has been called.
  Engine* engine() { return engine_.get(); }
  const Engine* engine() const { return engine_.get(); }
  // The spec of the layers that run.
  const ModelSpec& model() const { return model_; }
  const EngineInfo& info() const { return info_; }

 private:
  // spec: of the whole model.
  void Load(const ModelFiles& files, const EngineOptions& options, ModelSpec spec, const std::atomic<bool>* dropped);
  void SizeDeviceCache(const EngineOptions& options);
  uint64_t FreeDeviceBytes(const EngineOptions& options) const;
  uint64_t HiddenLogBytes() const;
  uint64_t PositionBytes() const;
  void Describe();

  std::unique_ptr<Device> device_;  // outlives everything in its memory
  KernelContext context_;
  EngineConfig config_;
  ModelSpec model_;
  std::unique_ptr<Decoder> decoder_;  // until Start
  DraftHeads heads_;                  // likewise
  EngineInfo info_;
  std::unique_ptr<Engine> engine_;
};

// The context of an engine's ops.
KernelContext ContextOf(const EngineOptions& options, Device* device);

// Loads the model and chooses the sizes of its cache; OpenedEngine::Start makes it run.
// dropped: may be null. Another thread sets it when the caller has given up; loading then ends between two matrices.
// Throws Error(kInvalidArgument, kModelFile, kUnsupportedModel, kOutOfMemory, kDevice).
std::unique_ptr<OpenedEngine> OpenEngine(const ModelFiles& files, const EngineOptions& options, const std::atomic<bool>* dropped = nullptr);

}  // namespace llmi
