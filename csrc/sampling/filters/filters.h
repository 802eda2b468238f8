// The filters: each cuts tokens from a row of logits (sets them to -inf) or reshapes it, in place. p is a token's probability under the
// row as it comes in, H the row's entropy in nats, from the masses of filters/row.h. Each keeps at least one token. "First", "shortest"
// and "prefix" are by rank: logit descending, then id ascending.
//
// row [vocab_size]: some logit is finite, none NaN or +inf; cut tokens are -inf and stay so.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops/context.h"

namespace llmi {

using Row = std::span<float>;

// --- temperature.cc
// logit / temperature. Throws Error(kNonFiniteLogits) if that makes the largest logit infinite.
void Temper(const KernelContext& context, double temperature, Row row);
// Dynamic temperature (koboldcpp; llama.cpp's temp-ext): T = low + (high - low) (H / ln N)^exponent with low = max(0, temperature - range),
// high = temperature + range, N the number of tokens that are not cut. N = 1: nothing; T below 1e-30: the first token alone.
void TemperByEntropy(const KernelContext& context, double temperature, double range, double exponent, Row row);

// --- thresholds.cc
// min-p (Nguyen et al., 2024): keeps p >= min_p times the largest p.
void KeepMinP(const KernelContext& context, double min_p, Row row);
// Epsilon sampling (Hewitt et al., 2022): keeps p >= epsilon, and the tokens that are as likely as the likeliest.
void KeepAboveEpsilon(const KernelContext& context, double epsilon, Row row);
// Eta sampling (Hewitt et al., 2022): the same with min(epsilon, sqrt(epsilon) exp(-H)).
void KeepAboveEta(const KernelContext& context, double epsilon, Row row);
// p-less (Tan et al., 2025): keeps p >= the sum of all p^2, in exact integers.
void KeepPLess(const KernelContext& context, Row row);
// Top-n-sigma (Tang et al., 2024): keeps logit >= maximum - n sigma, sigma: standard deviation of the logits that are not cut.
void KeepTopNSigma(const KernelContext& context, double n, Row row);

// --- ranked.cc
// The first k tokens.
void KeepTopK(int64_t k, Row row);
// Nucleus sampling (Holtzman et al., 2019): the shortest prefix whose p sum to `mass` or more.
void KeepTopP(const KernelContext& context, double mass, Row row);
// Top-H (Potraghloo et al., 2025): of the 100 first tokens, renormalised, the longest prefix whose terms -p ln p sum to at most
// share times the sum over all 100, and the first token.
void KeepTopH(const KernelContext& context, double share, Row row);
// Exclude top choices (text-generation-webui pull request 6335), for a position whose coin fell so: of the tokens with p >= threshold all
// but the last are cut. Nothing if threshold > 0.5 or fewer than two have that p.
void CutTopChoices(const KernelContext& context, double threshold, Row row);

// --- typical.cc
// Locally typical sampling (Meister et al., 2022): tokens in the order of |-ln p - H|, then of ids; the shortest prefix whose p sum to
// `mass` or more. The likeliest token may be cut.
void KeepTypical(const KernelContext& context, double mass, Row row);

// --- mirostat.cc
// Mirostat (Basu et al., 2021) by the bound mu, in bits. Version 1: the first k tokens, k from mu and from Zipf's exponent of the 100
// first, in llama.cpp's form. Version 2: the tokens with -log2 p <= mu, or the first.
void KeepMirostat(const KernelContext& context, int64_t version, double mu, Row row);

// --- adaptive.cc
// Adaptive-p (llama.cpp pull request 17927): logit = 5 - 10 d^2 / (1 + d) with d = |p - target| / 0.3.
void AdaptLogits(const KernelContext& context, double target, Row row);

}  // namespace llmi
