#include "model/expert_layer.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/experts.h"
#include "kernels/ops/route.h"
#include "model/mlp_layer.h"
#include "model/ranks.h"

namespace llmi {
namespace {

// One row of a linear layer for each row, multiplied in fp32: the router, and the gate of the shared expert.
void FloatLinear(const LayerPass& pass, const LinearWeights& layer, const float* x, int64_t num_rows, float* out) {
  Linear(pass.context, ArgsOf(PartsOf({&layer}), x, {}, num_rows, out, layer.matrix.view().num_rows, false));
}

struct Routed {
  ExpertPairs pairs;
  const float* weights;  // [rows, used]
};

Routed RouteRows(const LayerPass& pass, const MoeSpec& moe, const LayerWeights& weights, const float* x, int64_t num_rows) {
  float* logits = Floats(pass.context, pass.workspace.router, RouterFloats(moe, num_rows));
  float* chosen_weights = logits + num_rows * moe.num_experts;
  auto* integers = reinterpret_cast<int32_t*>(Floats(pass.context, pass.workspace.pairs, PairIntegers(moe, num_rows)));
  const int64_t num_pairs = num_rows * moe.num_used;
  FloatLinear(pass, weights.router, x, num_rows, logits);
  const RouterSpec& router = moe.router;
  Route(pass.context, {.score = router.score,
                       .group_score = router.group_score,
                       .renormalise = router.renormalise,
                       .num_experts = moe.num_experts,
                       .num_used = moe.num_used,
                       .num_groups = router.num_groups,
                       .used_groups = router.used_groups,
                       .least_sum = static_cast<float>(router.least_sum),
                       .sum_epsilon = static_cast<float>(router.sum_epsilon),
                       .factor = static_cast<float>(router.factor),
                       .mixer_threshold = static_cast<float>(router.mixer_threshold),
                       .num_rows = num_rows,
                       .logits = logits,
                       .choice_bias = weights.choice_bias.data(),
                       .expert_scales = weights.expert_scales.data(),
                       .experts = integers,
                       .weights = chosen_weights});
  const ExpertPairs pairs = {.num_experts = moe.num_experts,
                             .num_used = moe.num_used,
                             .num_rows = num_rows,
                             .experts = integers,
                             .first = integers + 3 * num_pairs,
                             .rows = integers + num_pairs,
                             .places = integers + 2 * num_pairs};
  SortPairs(pass.context, pairs);
  return {pairs, chosen_weights};
}

// The matrix of an expert with `rows` rows, as a part whose outputs begin at `column`.
LinearPart ExpertPart(const LinearWeights& layer, int64_t rows, int64_t column) {
  LinearPart part = {.weights = layer.matrix.view(), .bias = layer.bias.data(), .out_column = column};
  part.weights.num_rows = rows;
  return part;
}

// mixed [rows, hidden] = the weighted sum of each row's experts.
void MixExperts(const LayerPass& pass, const MoeSpec& moe, const MlpWeights& weights, const Routed& routed, const MlpInput& input,
                float* mixed) {
  const KernelContext& context = pass.context;
  const MlpSpec& expert = moe.expert;
  const int64_t hidden = pass.spec.hidden_size;
  const int64_t num_pairs = routed.pairs.num_pairs();
  const PackedMatrix& gate = FirstMatrix(expert, weights);
  const LinearInput forms = MakeInput(context, num_pairs, {&gate, &weights.up.matrix}, false, pass.workspace.gathered_forms);
  float* gathered = Floats(context, pass.workspace.gathered, num_pairs * hidden);
  const bool reads_floats =
      context.tap != nullptr || !IsQuantizedPacked(gate.view().type) || !IsQuantizedPacked(weights.up.matrix.view().type);
  GatherPairs(context, routed.pairs, input.x, input.forms, hidden, reads_floats ? gathered : nullptr, forms);

  const RowSpan own = pass.ranks == nullptr ? RowSpan{0, expert.size} : pass.ranks->plan().Inner(expert.size, pass.ranks->rank());
  const int64_t width = expert.gated ? 2 * own.size() : own.size();
  float* gate_up = Floats(context, pass.workspace.gate_up, num_pairs * width);
  std::vector<LinearPart> parts;
  if (expert.gated) parts.push_back(ExpertPart(weights.gate, own.size(), 0));
  parts.push_back(ExpertPart(weights.up, own.size(), width - own.size()));
  if (width > 0) ExpertLinear(context, routed.pairs, ArgsOf(parts, gathered, forms, num_pairs, gate_up, width, false));

  float* activated = Floats(context, pass.workspace.activated, num_pairs * expert.size);
  const LinearInput inner = MakeInput(context, num_pairs, {&weights.down.matrix}, false, pass.workspace.activated_forms);
  ActivationArgs activation = ActivationOf(expert, weights, gate_up, num_pairs, activated);
  if (pass.ranks == nullptr) {
    Activate(context, activation, inner);
  } else {
    activation.size = own.size();
    activation.out = Floats(context, pass.workspace.own, num_pairs * own.size());
    if (own.size() > 0) Activate(context, activation);
    CopyColumns(context, activation.out, own.size(), num_pairs, own.size(), activated + own.begin, expert.size);
    pass.ranks->GatherColumns(activated, num_pairs, expert.size, [&](int rank) { return pass.ranks->plan().Inner(expert.size, rank); });
    ConvertInput(context, activated, num_pairs, expert.size, inner);
  }

  const RowSpan columns = pass.ranks == nullptr ? RowSpan{0, hidden} : pass.ranks->plan().Hidden(pass.ranks->rank());
  float* out = pass.ranks == nullptr ? mixed : Floats(context, pass.workspace.own, routed.pairs.num_rows * columns.size());
  if (columns.size() > 0) {
    const std::vector<LinearPart> down = {ExpertPart(weights.down, columns.size(), 0)};
    ExpertLinear(context, routed.pairs, ArgsOf(down, activated, inner, num_pairs, gathered, columns.size(), false));
    MixPairs(context, routed.pairs, routed.weights, gathered, columns.size(), out);
  }
  if (pass.ranks == nullptr) return;
  CopyColumns(context, out, columns.size(), routed.pairs.num_rows, columns.size(), mixed + columns.begin, hidden);
  pass.ranks->GatherHidden(mixed, routed.pairs.num_rows, hidden);
}

// Adds the shared expert of the rows to `mixed`. gates: [rows], scratch.
void AddShared(const LayerPass& pass, int64_t layer, const LayerWeights& weights, const MlpInput& input, const RowRange& rows, float* gates,
               float* mixed) {
  const int64_t hidden = pass.spec.hidden_size;
  const bool has_gate = weights.shared_gate.matrix.num_bytes() > 0;
  if (has_gate) FloatLinear(pass, weights.shared_gate, input.x, rows.count, gates);
  const MlpInner inner = InnerRows(pass, pass.spec.layers[static_cast<size_t>(layer)].mlp, weights.mlp, input, rows.count);
  float* out = pass.normed + rows.begin * hidden;  // the MLP's input, which is not needed any more
  Linear(pass.context, ArgsOf(PartsOf({&weights.mlp.down}), inner.values, inner.forms, rows.count,
                              out + weights.mlp.down.matrix.first_row(), hidden, false));
  if (pass.ranks != nullptr) pass.ranks->GatherHidden(out, rows.count, hidden);
  if (const NormSpec& norm = pass.spec.layers[static_cast<size_t>(layer)].moe.shared_post_norm; norm.present) {
    Norm(pass.context, RowNorm(norm, weights.post_shared_norm, out, out, rows.count, hidden));
  }
  AddGated(pass.context, out, has_gate ? gates : nullptr, rows.count, hidden, mixed);
}

}  // namespace

void ExpertLayer(const LayerPass& pass, int64_t layer, const LayerWeights& weights, ExpertUse* use) {
  const LayerSpec& spec = pass.spec.layers[static_cast<size_t>(layer)];
  const MoeSpec& moe = spec.moe;
  const int64_t most_rows = MostMlpRows(pass.context.device != nullptr);
  for (int64_t begin = 0; begin < pass.num_rows; begin += most_rows) {
    const RowRange rows{begin, std::min(most_rows, pass.num_rows - begin)};
    const PackedMatrix& gate = FirstMatrix(moe.expert, weights.experts);
    const int64_t hidden = pass.spec.hidden_size;
    float* mixed = Floats(pass.context, pass.workspace.mixed, rows.count * hidden);
    const MlpInput input =
        moe.norm.present
            ? ReadNormedRows(pass, {moe.norm, weights.expert_norm}, rows, {&gate, &weights.experts.up.matrix})
            : ReadMlpRows(pass, spec, weights, rows, {&gate, &weights.experts.up.matrix, &weights.mlp.gate.matrix, &weights.mlp.up.matrix});
    if (moe.router.norm.present) {
      Norm(pass.context, RowNorm(moe.router.norm, weights.router_norm, pass.x + rows.begin * hidden, mixed, rows.count, hidden));
    }
    const Routed routed = RouteRows(pass, moe, weights, moe.router.norm.present ? mixed : input.x, rows.count);
    if (pass.context.device == nullptr) use->Count(layer, rows.begin, routed.pairs);
    MixExperts(pass, moe, weights.experts, routed, input, mixed);
    if (moe.post_norm.present) {
      Norm(pass.context, RowNorm(moe.post_norm, weights.post_expert_norm, mixed, mixed, rows.count, hidden));
    }
    if (spec.mlp.size > 0) {
      float* gates = pass.workspace.router.as<float>() + rows.count * (moe.num_experts + moe.num_used);
      const bool reads_apart = moe.norm.present;
      AddShared(pass, layer, weights,
                reads_apart ? ReadMlpRows(pass, spec, weights, rows, {&weights.mlp.gate.matrix, &weights.mlp.up.matrix}) : input, rows,
                gates, mixed);
    }
    AddRowsToStream(pass, rows, mixed, {spec.post_mlp_norm, weights.post_mlp_norm}, spec.residual_scale);
  }
}

}  // namespace llmi
