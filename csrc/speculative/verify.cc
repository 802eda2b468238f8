#include "speculative/verify.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/errors.h"
#include "kernels/draws/verify.h"

namespace llmi {
namespace {

// The probability of token `id` under the law that a node was drawn from; empty: a point mass on the node's token.
double DraftProbability(size_t id, int32_t node_token, std::span<const float> law) {
  return llmi::DraftProbability(static_cast<int64_t>(id), node_token, law.empty() ? nullptr : law.data());
}

}  // namespace

double SumOfLaw(std::span<const double> weights) {
  std::array<double, kLawLanes> sums{};
  for (size_t begin = 0; begin < weights.size(); begin += kLawLanes) {
    const size_t count = std::min<size_t>(kLawLanes, weights.size() - begin);
    for (size_t lane = 0; lane < count; ++lane) sums[lane] += weights[begin + lane];
  }
  for (size_t half = kLawLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

double AcceptanceRule::AcceptProbability(int32_t token, std::span<const double> target, std::span<const float> draft) const {
  const auto index = static_cast<size_t>(token);
  return ExactAcceptance(target[index], DraftProbability(index, token, draft));
}

void AcceptanceRule::Residual(int32_t token, std::vector<double>* target, std::span<const float> draft) const {
  for (size_t i = 0; i < target->size(); ++i) (*target)[i] = ResidualWeight((*target)[i], DraftProbability(i, token, draft));
  const double divisor = LawDivisor(SumOfLaw(*target));
  for (double& value : *target) value /= divisor;
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

DraftVerdict BlockVerification::Judge(DraftRows& rows) const {
  const Draft& draft = rows.draft();
  if (!draft.is_chain()) {
    throw Error(ErrorKind::kDraft, "block verification takes chains, and this draft is a tree: use verification='rejection'");
  }
  const auto law_of = [&](int64_t node) {
    return draft.laws.empty() ? std::span<const float>() : std::span<const float>(draft.laws[static_cast<size_t>(node)]);
  };
  // The weights of the token after the first `length` ones, if these are the longest accepted beginning. bears: the capped ratio of the
  // joint probabilities of these tokens, target over drafter.
  const auto left_after = [&](int64_t length, double bears) {
    const std::span<const double> target = rows.Target(static_cast<int32_t>(length) - 1);
    std::vector<double> left(target.size());
    for (size_t id = 0; id < left.size(); ++id) {
      left[id] = ResidualWeight(bears * target[id], DraftProbability(id, draft.token_ids[static_cast<size_t>(length)], law_of(length)));
    }
    return left;
  };
  int64_t accepted = 0;
  double bears = 1;
  double bears_accepted = 1;
  for (int64_t node = 0; node < draft.size(); ++node) {
    const int32_t token = draft.token_ids[static_cast<size_t>(node)];
    const double target = rows.Target(static_cast<int32_t>(node) - 1)[static_cast<size_t>(token)];
    const double drawn = DraftProbability(static_cast<size_t>(token), token, law_of(node));
    bears = drawn > 0 ? std::min(1.0, bears * target / drawn) : 0.0;
    if (bears <= 0) break;  // nothing from here on can be accepted, and laws behind a token that is cut may keep no token
    double probability = bears;
    if (node + 1 < draft.size()) {
      const double left = SumOfLaw(left_after(node + 1, bears));
      probability = left > 0 ? left / (left + 1 - bears) : 0.0;
    }
    if (rows.Uniform(static_cast<int32_t>(node)) >= probability) continue;
    accepted = node + 1;
    bears_accepted = bears;
  }
  DraftVerdict verdict;
  for (int64_t node = 0; node < accepted; ++node) verdict.path.push_back(static_cast<int32_t>(node));
  const auto last = static_cast<int32_t>(accepted) - 1;
  if (accepted == draft.size()) {
    verdict.next_token = rows.Draw(rows.Target(last), last, false);
    return verdict;
  }
  const std::vector<double> left = left_after(accepted, bears_accepted);
  const bool empty = std::all_of(left.begin(), left.end(), [](double value) { return value <= 0; });
  verdict.next_token = rows.Draw(empty ? rows.Target(last) : std::span<const double>(left), last, true);
  return verdict;
}

}  // namespace llmi
