// A rank other than 0: it loads its part of the model, and takes part in what rank 0 calls it to.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/options.h"
#include "io/model_files.h"
#include "model/decoder.h"
#include "model/ranks.h"

namespace llmi {

// What each rank tells rank 0 of itself when it has loaded its part.
struct RankFacts {
  char identity[72] = {};  // EngineOptions::identity
  uint64_t weight_bytes = 0;
  uint64_t step_weight_bytes = 0;
  int64_t query_heads = 0, kv_heads = 0;  // of all layers
  int64_t hidden = 0, vocabulary = 0;     // how many of them are its own
  uint64_t kv_bytes = 0;                  // of its pages; rank 0 knows it
  uint64_t free_bytes = 0;                // that its device has for the cache
  int32_t pid = 0;
  int32_t stage = 0;
  char host[64] = {};
};

// The ranks of these options; null: there is one. Throws as RankPlan does.
std::unique_ptr<Ranks> RanksOf(const EngineOptions& options, const ModelSpec& spec);

// Of all ranks, on each. Throws Error(kModelFile) naming a rank that has loaded something else.
// The devices meet.
std::vector<RankFacts> ExchangeFacts(Decoder& decoder, const EngineOptions& options, Device* device);

// What rank 0 has chosen.
struct RankStart {
  int64_t num_pages = 0;
  int64_t max_model_len = 0;
  StateSizes states = {};   // of all ranks together
  DraftKvShape draft = {};  // that has a place in each page of rank 0
};
void BeginRanks(const Ranks& ranks, RankStart start);
// Rank 0: from now on others that die are started again, if the options say how.
void RestartRanks(Decoder& decoder, const EngineOptions& options, Device* device, RankStart start);

// Loads the part of options.ranks, and returns when rank 0 has ended the group. An error is told to the others, and thrown.
void ServeRank(const ModelFiles& files, const EngineOptions& options);

}  // namespace llmi
