#include "speculative/verify.h"

#include <algorithm>
#include <utility>

namespace llmi {

double AcceptanceRule::AcceptProbability(int32_t token, std::span<const double> target, std::span<const float> draft) const {
  const auto index = static_cast<size_t>(token);
  if (draft.empty()) return target[index];
  const auto drawn = static_cast<double>(draft[index]);
  return target[index] >= drawn ? 1.0 : target[index] / drawn;
}

void AcceptanceRule::Residual(int32_t token, std::vector<double>* target, std::span<const float> draft) const {
  double total = 0;
  for (size_t i = 0; i < target->size(); ++i) {
    const double drawn = draft.empty() ? (i == static_cast<size_t>(token) ? 1.0 : 0.0) : static_cast<double>(draft[i]);
    (*target)[i] = std::max(0.0, (*target)[i] - drawn);
    total += (*target)[i];
  }
  if (total <= 0) return;  // the laws are equal up to rounding, and the node was accepted but for it
  for (double& value : *target) value /= total;
}

RowVerdict VerifyRow(const Draft& draft, int32_t node, std::vector<double> target, const AcceptanceRule& rule, VerifyNoise& noise) {
  const std::vector<double> whole = target;
  bool rejected = false;
  for (int32_t i : draft.Children(node)) {
    const int32_t token = draft.token_ids[static_cast<size_t>(i)];
    const std::span<const float> law = draft.laws.empty() ? std::span<const float>() : draft.laws[static_cast<size_t>(i)];
    if (noise.Uniform(i) < rule.AcceptProbability(token, target, law)) return {token, i};
    rule.Residual(token, &target, law);
    rejected = true;
  }
  const bool empty = std::all_of(target.begin(), target.end(), [](double value) { return value <= 0; });
  return {noise.Draw(empty ? whole : target, rejected), -1};
}

}  // namespace llmi
