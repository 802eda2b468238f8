// Contrastive search (Su et al., 2022): the record of one continuation that lasts from step to step. Engine thread only.
//
// The candidates for the next token are the top_k likeliest of the last token's processed row. They run as a draft, a tree of siblings
// behind the last committed token, in one step, and the best one is the token:
//   score(v) = (1 - alpha) p(v) - alpha max over j of cos(h_v, h_j)
// p: softmax of the whole processed row. h: hidden states after the final norm, j: every token of prompt and output before v. Equal scores:
// the likelier one, then the lower id. The row of the chosen candidate is computed by then, and gives the next candidates.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/contrast/cosine_index.h"
#include "sampling/law.h"

namespace llmi {

struct ContrastRecord {
  CosineIndex rows;            // of the committed tokens
  std::vector<float> probs;    // p of the candidates
  std::vector<double> scores;  // of the candidates that this step has scored
  int32_t chosen = -1;         // the candidate that this step has named
  // The row that the candidates come from, where something reads it: raw logits, law, stages for a trace.
  std::vector<float> raw;
  std::vector<float> law;
  LawStages stages;
};

}  // namespace llmi
