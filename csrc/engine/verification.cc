#include "engine/verification.h"

#include <algorithm>
#include <utility>

#include "kernels/draws/verify.h"
#include "kernels/ops/vocab.h"

namespace llmi {
namespace {

NoiseKey KeyAfterRejection(NoiseKey key) {
  key.purpose = 3;
  return key;
}

class RowNoise : public VerifyNoise {
 public:
  RowNoise(const KernelContext& context, const SamplingParams& params, const NoiseKey& key, const Draft& draft)
      : context_(context), params_(params), key_(key), draft_(draft) {}
  double Uniform(int32_t node) override { return AcceptanceUniform(key_, draft_.token_ids[static_cast<size_t>(node)]); }
  int32_t Draw(std::span<const double> probs, bool after_rejection) override {
    return DrawVerified(context_, params_, key_, probs, after_rejection);
  }

 private:
  const KernelContext& context_;
  const SamplingParams& params_;
  NoiseKey key_;
  const Draft& draft_;
};

}  // namespace

double AcceptanceUniform(NoiseKey key, int32_t token_id) {
  key.purpose = 2;
  return UniformOf(NoiseWord(key, token_id));
}

int32_t DrawVerified(const KernelContext& context, const SamplingParams& params, NoiseKey key, std::span<const double> probs,
                     bool after_rejection) {
  if (params.greedy()) return static_cast<int32_t>(std::max_element(probs.begin(), probs.end()) - probs.begin());
  std::vector<float> law(probs.size());
  std::transform(probs.begin(), probs.end(), law.begin(), LogLaw);
  key.purpose = 0;
  if (after_rejection) {
    key = KeyAfterRejection(key);
  } else {
    key.round = 0;
  }
  return Draw(context, key, law.data(), static_cast<int64_t>(law.size()));
}

std::vector<double> NormalisedLaw(const KernelContext& context, const SamplingParams& params, std::span<const float> law) {
  std::vector<double> target(law.size(), 0.0);
  const auto best = static_cast<size_t>(ArgMax(context, law.data(), static_cast<int64_t>(law.size())));
  if (params.greedy()) {
    target[best] = 1.0;
    return target;
  }
  for (size_t i = 0; i < law.size(); ++i) target[i] = LawWeight(law[i], law[best]);
  const double total = SumOfLaw(target);
  for (double& value : target) value /= total;
  return target;
}

RowVerdict VerifyLaw(const KernelContext& context, const SamplingParams& params, const NoiseKey& key, std::span<const float> law,
                     const Draft& draft, int32_t node, const AcceptanceRule& rule) {
  RowNoise noise(context, params, key, draft);
  return VerifyRow(draft, node, NormalisedLaw(context, params, law), rule, noise);
}

void AddVerification(const NoiseKey& key, const Draft& draft, std::span<const int32_t> children, DrawList* draws) {
  for (const int32_t node : children) {
    const auto index = static_cast<size_t>(node);
    const int32_t token_id = draft.token_ids[index];
    draws->AddDrafted(token_id, draft.laws.empty() ? std::span<const float>() : draft.laws[index], AcceptanceUniform(key, token_id));
  }
  draws->SetNoiseAfterRejection(KeyAfterRejection(key));
}

}  // namespace llmi
