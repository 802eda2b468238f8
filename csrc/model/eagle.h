// An EAGLE layer: a drafter of one decoder layer that reads the target's own hidden rows (Li et al., EAGLE, 2024).
//
// Row s, for s >= 1, stands at the place of token s: x = fc([embedding of token s; hidden row of token s - 1]), where hidden rows are those
// that the target's head reads. The layer has no norm before its attention. It rotates row s as position s - 1, and its attention sees the
// rows 1 to s. Its output stands for the hidden row of token s: the target's head makes the logits of token s + 1 of it, and the next row
// reads it where the target's own is not known. K and V are functions of x alone; they are in slot s of the sequence's blocks
// (KvGroups::draft_layer). So committed rows are stored without attention, and only the last row of a sequence is run whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/kv_cache.h"
#include "io/model_files.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/context.h"
#include "model/attention_layer.h"
#include "model/decoder.h"
#include "model/layer_pass.h"
#include "model/position_values.h"
#include "model/spec.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace llmi {

// EAGLE-3 (Li et al., 2025) reads the residual stream after some of the target's layers instead of the rows of its head: the hidden row of
// token s - 1 is fc of them. The layer's stream begins with the hidden row, its attention reads [norm of the embedding; norm of the hidden
// row], and a norm and a head of its own follow, whose rows stand for some of the target's tokens. Files differ in what is normed besides.
struct EagleForm {
  std::vector<int> taps;     // EAGLE-3: hidden states after these layers of the target; empty: EAGLE-1
  bool norm_output = false;  // the final norm is the layer's last step: the next row, too, reads what the head reads
};

struct EagleWeights {
  ModelWeights model;                         // of one layer; the embedding is empty where the target's is read
  LinearWeights from_embedding, from_hidden;  // EAGLE-1: the columns of fc, [hidden, hidden] each; the bias is the first one's
  EagleForm form;
  LinearWeights from_taps;          // EAGLE-3: fc [hidden, taps * hidden]
  NormWeights tap_norm;             // EAGLE-3: of what fc reads [taps * hidden], or empty
  int64_t num_tap_norms = 0;        // 1: all of it is normed as one row; the number of taps: each by itself; 0: none
  NormWeights embedding_norm;       // EAGLE-3: of what its attention reads
  NormWeights stream_norm;          // EAGLE-3: of the hidden row that the layer's stream begins with, or empty
  LinearWeights query, key, value;  // EAGLE-3: the columns of its projections that read the embedding
  std::vector<int32_t> shortlist;   // the tokens that drafts are chosen from; empty: all
  PackedMatrix head;                // head rows of these tokens, its own or the target's; empty: the target's head is read

  uint64_t num_bytes() const;
};

// Rows of several sequences.
struct EagleRows {
  // Rows of one sequence that are run whole: its last row, or nodes of a draft.
  struct Query {
    std::vector<int32_t> rows;  // for each row of the segment, the row here; -1: it is not run
    AttentionSegment segment;
    std::vector<int32_t> positions;  // of the segment's rows: slots behind its table, the same one for all that are run
  };
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;          // that the rows are rotated by
  const float* hidden = nullptr;           // [num_rows, hidden_size], where the ops run
  std::vector<AttentionSegment> segments;  // the slots where K and V are stored
  std::vector<Query> queries;

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
};

class EagleDecoder {
 public:
  // spec: of one layer; valid.
  EagleDecoder(ModelSpec spec, EagleWeights weights);

  const ModelSpec& spec() const { return spec_; }
  const EagleWeights& weights() const { return weights_; }
  // On a device: the values of positions (PositionValues::Reserve).
  void ReservePositions(const KernelContext& context, int64_t num_positions) { positions_.Reserve(context, num_positions); }
  bool is_eagle3() const { return !weights_.form.taps.empty(); }
  // The layers of the target whose hidden states it reads.
  std::vector<int> TargetLayers(const Decoder& target) const;
  // Makes the hidden rows `out` [count, hidden_size] that the layer reads, where the ops run. streams: of each of the target's layers, its
  // hidden states [count, hidden_size].
  void ReadTarget(const KernelContext& context, const Decoder& target, const std::vector<const float*>& streams, int64_t count, float* out);
  // The hidden rows that EAGLE-3 makes of tapped rows [count, taps * hidden], which are normed in place.
  void FromTaps(const KernelContext& context, float* tapped, int64_t count, float* out);
  // Stores K and V of all rows. Returns the outputs [rows that are run, hidden_size], in the order of the queries, where the ops run; valid
  // until the next call. kv: KvCache::View of the drafter's layer.
  const float* Forward(const KernelContext& context, const Decoder& target, const KvView& kv, const EagleRows& rows);
  // The logits [num_rows, num_choices] of outputs, on the host.
  void Logits(const KernelContext& context, Decoder& target, const float* outputs, int64_t num_rows, std::vector<float>* logits);

 private:
  // The embeddings of the rows, for EAGLE-3 normed.
  float* Embedded(const KernelContext& context, const Decoder& target, const EagleRows& rows);
  void Fuse(const KernelContext& context, const Decoder& target, const EagleRows& rows);
  void Add(const KernelContext& context, const LinearWeights& layer, const float* x, int64_t num_rows, float* out, bool accumulate);
  LayerPass Begin(const KernelContext& context, const std::vector<int32_t>& positions, float* x);
  ProjectedHeads Project(const LayerPass& pass, HeadKinds kinds, const AlignedBuffer& embedded);
  void StoreKeysAndValues(const KernelContext& context, const KvView& kv, const EagleRows& rows);
  void RunQueries(const KernelContext& context, const KvView& kv, const EagleRows& rows);
  void Attend(const LayerPass& pass, const KvView& kv, const EagleRows& rows, const ProjectedHeads& heads, float* attended);

  ModelSpec spec_;
  EagleWeights weights_;
  PositionValues positions_;
  Workspace workspace_;
  AlignedBuffer tapped_;                      // [rows, taps * hidden]
  AlignedBuffer begun_, embedded_;            // [rows, hidden]: where the layer's stream begins; the embeddings as it reads them
  AlignedBuffer run_embedded_;                // the same of the rows that are run
  AlignedBuffer tree_queries_, tree_values_;  // [nodes, heads * head_dim], of a draft that is a tree
};

// The file of a layer, and what Python has read of it.
struct EagleFile {
  std::shared_ptr<const ModelFiles> files;
  std::string spec;                // the layer's, as JSON (model/spec.h); EAGLE-3's head is not in it
  std::vector<int32_t> shortlist;  // the tokens that it chooses from: those of the rows of EAGLE-3's head, else ascending, empty: all
  EagleForm form;
  // EAGLE-3: the names of its norms (stream_norm: empty: none), of those of what fc reads (one of all, or one of each tap; none), and of
  // its head (empty: the target's)
  std::string embedding_norm, stream_norm;
  std::vector<std::string> tap_norms;
  std::string head;
  std::vector<std::string> inert;  // tensors that are read in Python, or not needed
};

// Loads the layer in the format of the target's own. Throws Error(kModelFile, kUnsupportedModel) naming the tensor that is missing, is not
// known or has another shape.
std::unique_ptr<EagleDecoder> LoadEagle(const KernelContext& context, const EagleFile& file, const ModelFiles& target_files,
                                        const Decoder& target);

}  // namespace llmi
