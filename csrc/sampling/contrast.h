// Rows that are made of several rows, before the masks: guidance, and DoLa. Both are functions of these rows alone, in fp32, each operation
// rounded once, so that every machine and any number of threads give the same bits.
//
// Guide (classifier-free guidance; Sanchez et al., 2024): with c and u the log-softmaxes of the conditional and the unconditional row,
//     out = u + scale * (c - u).
//
// ContrastLayers (DoLa; Chuang et al., 2024): of the layers' rows, the one whose law is farthest from the final law is chosen, the first
// among equals; then, with f and q the log-softmaxes of the final row and of the chosen one,
//     out = f - q   where f >= max f + log 0.1,   -inf elsewhere.
// The distance (layer_divergence in kernels/ops/vocab.h) is the Jensen-Shannon divergence, the paper's; or, under transformers' rule, the
// sum of the divergences of the mean law from the two, KL(m, f) + KL(m, q).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops/context.h"

namespace llmi {

// conditional [vocab_size]; unconditional [vocab_size] is replaced by the result.
void Guide(const KernelContext& context, const float* conditional, double scale, float* unconditional, int64_t vocab_size);

// final [vocab_size]; layers [num_layers, vocab_size], at least one, replaced by their log-softmaxes. The result goes to out [vocab_size].
// Returns the index of the chosen layer.
int64_t ContrastLayers(const KernelContext& context, const float* final, std::span<float> layers, bool by_transformers, float* out,
                       int64_t vocab_size);

}  // namespace llmi
