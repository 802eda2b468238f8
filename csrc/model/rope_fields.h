// Rotary embedding as config.json and GGUF metadata say it.
#pragma once

#include "core/json_fields.h"
#include "io/gguf_fields.h"
#include "model/config.h"

namespace llmi {

// config.json, one table for all layers: "rope_theta", "rope_scaling" and "partial_rotary_factor" at the top, or all of it in
// "rope_parameters" (transformers 5). Throws Error(kModelFile, kUnsupportedModel) for a type that is not run, a number that is missing,
// and for two places that contradict each other.
RopeConfig RopeOf(const JsonFields& config, int64_t head_dim, double default_theta);

// config.json with a table for each kind of layer: [full, sliding], from "rope_parameters" by kind, or from "rope_theta" and
// "rope_scaling" (full attention) and "rope_local_base_freq" (sliding).
std::vector<RopeConfig> RopesByLayerKind(const JsonFields& config, int64_t head_dim, double default_theta, double default_local_theta);

// GGUF: <prefix>.rope.*
RopeConfig RopeOf(const GgufFields& fields, const std::string& prefix, int64_t head_dim);

}  // namespace llmi
