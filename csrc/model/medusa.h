// Medusa heads: each guesses one of the next tokens from the target's own hidden row alone (Cai et al., Medusa, 2024).
//
// Head k (counted from 0) reads the row that the target's head has drawn a token from, after the final norm, and guesses the token
// k + 1 places behind that one. It is a chain of blocks x = x + silu(W x + b), then a matrix over the vocabulary: its own, or the target's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/model_files.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/pack.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace llmi {

struct MedusaHead {
  std::vector<LinearWeights> blocks;  // [hidden, hidden] each, with a bias
  PackedMatrix vocabulary;            // [choices, hidden]; empty: the target's head is read
};

class MedusaHeads {
 public:
  // shortlist: the tokens of the rows of `rows` or of the heads' own matrices; empty: all. rows: rows of the target's head, for the heads
  // that have none; empty: the target's head itself.
  MedusaHeads(std::vector<MedusaHead> heads, std::vector<int32_t> shortlist, PackedMatrix rows);

  int64_t num_heads() const { return static_cast<int64_t>(heads_.size()); }
  const std::vector<int32_t>& shortlist() const { return shortlist_; }
  uint64_t num_bytes() const;
  // The logits [num_rows, number of choices] of one head. rows: hidden rows as the target's head reads them, where the ops run.
  void Logits(const KernelContext& context, Decoder& target, const std::vector<const float*>& rows, int64_t head,
              std::vector<float>* logits);

 private:
  void RunBlock(const KernelContext& context, const LinearWeights& block, int64_t num_rows, float* x);

  std::vector<MedusaHead> heads_;
  std::vector<int32_t> shortlist_;
  PackedMatrix rows_;
  AlignedBuffer x_, inner_, activated_;  // [rows, hidden]
  AlignedBuffer logits_;                 // [rows, choices]
  FormsRoom forms_;
};

// The file of some heads, and what Python has read of it.
struct MedusaFile {
  std::shared_ptr<const ModelFiles> files;
  std::vector<std::vector<std::string>> blocks;  // by head, the names of its blocks' matrices without ".weight" and ".bias"
  std::vector<std::string> vocabularies;         // by head, the name of its matrix over the vocabulary; empty: the target's head
  std::vector<int32_t> shortlist;                // the tokens that drafts are chosen from, ascending; empty: all
  std::vector<std::string> inert;                // tensors that are read in Python
};

// Loads heads in the formats of the target's own matrices. Throws Error(kModelFile, kUnsupportedModel) naming the tensor that is missing,
// is not known or has another shape.
std::unique_ptr<MedusaHeads> LoadMedusa(const KernelContext& context, const MedusaFile& file, const ModelFiles& target_files,
                                        const Decoder& target);

}  // namespace llmi
