// What the loaders of trained drafters (eagle_loader.cc, medusa_loader.cc) have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/model_files.h"
#include "io/recorded_tensors.h"
#include "kernels/ops/context.h"
#include "model/decoder.h"
#include "model/pack.h"
#include "model/spec.h"
#include "model/workspace.h"

namespace llmi {

// The format of a drafter's matrices, by one of the target's. Matrices of quantised layers are quantised to as many bits; others get the
// type of the target's.
WeightFormat FormatLike(const PackedMatrix& target);

// The tensor of this name and shape: a matrix, or, of one extent, a vector of floats. path: in messages. Throws Error(kModelFile).
const TensorView& FoundTensor(const std::string& path, const TensorFile& file, const std::string& name, const std::vector<uint64_t>& shape);
std::vector<float> FloatVector(const TensorView& view);

// Throws Error(kUnsupportedModel) if a tensor was not read. what: the drafter, as in "an EAGLE layer".
void RefuseUnreadDraft(const std::string& path, const RecordedTensors& tensors, const std::string& what);

// Buffers that HeadLogits reuses.
struct HeadRoom {
  FormsRoom& forms;
  AlignedBuffer& logits;  // [num_rows, choices]
};

// The logits of `rows`, a matrix over some tokens [choices, hidden], for x [num_rows, hidden], where the ops run; if it is empty, those of
// the target's head. spec: of the head that the rows are a part of; its scale and soft cap are applied.
void HeadLogits(const KernelContext& context, const PackedMatrix& rows, const HeadSpec& spec, Decoder& target, const float* x,
                int64_t num_rows, HeadRoom room, std::vector<float>* logits);

// The target's head rows of these tokens, packed as they are in its own head; empty where they are not plain rows of its file.
PackedMatrix HeadRows(const KernelContext& context, const std::vector<int32_t>& shortlist, const ModelFiles& files, const Decoder& target);

}  // namespace llmi
