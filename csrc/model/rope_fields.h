// Reads the settings of the rotary embedding from config.json and GGUF metadata.
#pragma once

#include "core/json_fields.h"
#include "io/gguf_fields.h"
#include "model/config.h"

namespace llmi {

// config.json, one table for all layers: "rope_theta", "rope_scaling" and "partial_rotary_factor" at the top, or all of them in
// "rope_parameters" (transformers 5). Throws Error(kUnsupportedModel) for a type of scaling that llmi does not run, Error(kModelFile) for a
// missing number, or if two places contradict each other.
RopeConfig RopeOf(const JsonFields& config, int64_t head_dim, double default_theta);

// config.json, one table for each kind of layer, [full, sliding]: from the kinds' objects in "rope_parameters", or from "rope_theta" and
// "rope_scaling" (full attention) and "rope_local_base_freq" (sliding).
std::vector<RopeConfig> RopesByLayerKind(const JsonFields& config, int64_t head_dim, double default_theta, double default_local_theta);

// GGUF: <prefix>.rope.*
RopeConfig RopeOf(const GgufFields& fields, const std::string& prefix, int64_t head_dim);

}  // namespace llmi
