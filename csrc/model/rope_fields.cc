#include "model/rope_fields.h"

#include <optional>

#include "core/errors.h"

namespace llmi {
namespace {

[[noreturn]] void RefuseType(const std::string& source, const std::string& field, const std::string& type) {
  throw Error(ErrorKind::kUnsupportedModel,
              source + ": " + field + ": RoPE scaling '" + type + "' is not run (default, linear and llama3 are)", field);
}

[[noreturn]] void RefuseContradiction(const std::string& source, const std::string& one, const std::string& other) {
  throw Error(ErrorKind::kModelFile, source + ": '" + one + "' and '" + other + "' say different things", one);
}

std::string ScalingType(const JsonFields& scaling) {
  const std::optional<std::string> type = scaling.OptionalString("rope_type");
  const std::optional<std::string> old_type = scaling.OptionalString("type");
  if (type && old_type && *type != *old_type) RefuseContradiction(scaling.source(), scaling.Name("rope_type"), scaling.Name("type"));
  return type ? *type : old_type.value_or("default");
}

// Reads "rope_scaling", or an object of "rope_parameters". Other members stay unread, so the loader refuses them.
void ReadScaling(const JsonFields& scaling, RopeConfig* rope) {
  const std::string type = ScalingType(scaling);
  if (type == "linear") {
    rope->linear_factor = scaling.Number("factor");
  } else if (type == "llama3") {
    rope->llama3_factor = scaling.Number("factor");
    rope->llama3_low_freq_factor = scaling.Number("low_freq_factor");
    rope->llama3_high_freq_factor = scaling.Number("high_freq_factor");
    rope->llama3_original_context = scaling.Integer("original_max_position_embeddings");
  } else if (type != "default") {
    RefuseType(scaling.source(), scaling.Name("rope_type"), type);
  }
}

int64_t RotaryDim(const JsonFields& fields, int64_t head_dim, double factor) {
  if (!(factor > 0 && factor <= 1)) {
    throw Error(ErrorKind::kModelFile, fields.source() + ": " + fields.Name("partial_rotary_factor") + " must lie in (0, 1]",
                fields.Name("partial_rotary_factor"));
  }
  return static_cast<int64_t>(static_cast<double>(head_dim) * factor);
}

// A number that may be at the top, in `object`, or in both with the same value.
double Agreed(const JsonFields& config, const std::string& top_key, const JsonFields& object, const std::string& key, double fallback) {
  const std::optional<double> top = config.OptionalNumber(top_key);
  const std::optional<double> inner = object.OptionalNumber(key);
  if (top && inner && *top != *inner) RefuseContradiction(config.source(), top_key, object.Name(key));
  return inner ? *inner : top.value_or(fallback);
}

// parameters: rope_parameters, or its entry for one kind of layer.
RopeConfig FromParameters(const JsonFields& config, const JsonFields& parameters, const std::string& theta_key, int64_t head_dim,
                          double default_theta) {
  RopeConfig rope;
  rope.theta = Agreed(config, theta_key, parameters, "rope_theta", default_theta);
  rope.rotary_dim = RotaryDim(parameters, head_dim, Agreed(config, "partial_rotary_factor", parameters, "partial_rotary_factor", 1.0));
  ReadScaling(parameters, &rope);
  return rope;
}

// If the config has both rope_scaling and rope_parameters, they must agree.
void CheckSameScaling(const JsonFields& config, const JsonFields& parameters, const RopeConfig& rope) {
  const std::optional<JsonFields> scaling = config.Object("rope_scaling");
  if (!scaling) return;
  RopeConfig other = rope;
  other.linear_factor = other.llama3_factor = 1.0;
  ReadScaling(*scaling, &other);
  if (!(other == rope)) RefuseContradiction(config.source(), "rope_scaling", parameters.Name("rope_type"));
  Agreed(parameters, "rope_theta", *scaling, "rope_theta", rope.theta);
}

JsonFields EntryOf(const JsonFields& parameters, const char* kind) {
  std::optional<JsonFields> entry = parameters.Object(kind);
  if (!entry) {
    throw Error(ErrorKind::kModelFile,
                parameters.source() + ": '" + parameters.Name(kind) + "' is missing: this family has one entry for each kind of layer",
                parameters.Name(kind));
  }
  return *entry;
}

}  // namespace

RopeConfig RopeOf(const JsonFields& config, int64_t head_dim, double default_theta) {
  if (const std::optional<JsonFields> parameters = config.Object("rope_parameters")) {
    const RopeConfig rope = FromParameters(config, *parameters, "rope_theta", head_dim, default_theta);
    CheckSameScaling(config, *parameters, rope);
    return rope;
  }
  RopeConfig rope;
  rope.theta = config.Number("rope_theta", default_theta);
  rope.rotary_dim = RotaryDim(config, head_dim, config.OptionalNumber("partial_rotary_factor").value_or(1.0));
  if (const std::optional<JsonFields> scaling = config.Object("rope_scaling")) ReadScaling(*scaling, &rope);
  return rope;
}

std::vector<RopeConfig> RopesByLayerKind(const JsonFields& config, int64_t head_dim, double default_theta, double default_local_theta) {
  if (const std::optional<JsonFields> parameters = config.Object("rope_parameters")) {
    const JsonFields full = EntryOf(*parameters, "full_attention");
    const JsonFields sliding = EntryOf(*parameters, "sliding_attention");
    const RopeConfig rope = FromParameters(config, full, "rope_theta", head_dim, default_theta);
    CheckSameScaling(config, full, rope);
    return {rope, FromParameters(config, sliding, "rope_local_base_freq", head_dim, default_local_theta)};
  }
  RopeConfig local;
  local.theta = config.Number("rope_local_base_freq", default_local_theta);
  local.rotary_dim = RotaryDim(config, head_dim, config.OptionalNumber("partial_rotary_factor").value_or(1.0));
  return {RopeOf(config, head_dim, default_theta), local};
}

RopeConfig RopeOf(const GgufFields& fields, const std::string& prefix, int64_t head_dim) {
  const std::string rope_prefix = prefix + ".rope.";
  RopeConfig rope;
  rope.theta = fields.Number(rope_prefix + "freq_base", 10000.0);
  rope.rotary_dim = fields.Integer(rope_prefix + "dimension_count", head_dim);
  // As in llama.cpp, the default type is linear, the factor may have its old name, and a factor of 0 means no scaling.
  const std::string type_key = rope_prefix + "scaling.type";
  const std::string type = fields.String(type_key, "linear");
  if (type != "linear" && type != "none") RefuseType(fields.source(), type_key, type);
  const bool named = fields.Has(rope_prefix + "scaling.factor");
  const double old_factor = fields.Number(rope_prefix + "scale_linear", 0.0);
  const double factor = named ? fields.Number(rope_prefix + "scaling.factor") : old_factor;
  if (named && old_factor != 0 && old_factor != factor) {
    RefuseContradiction(fields.source(), rope_prefix + "scale_linear", rope_prefix + "scaling.factor");
  }
  if (type == "linear" && factor != 0) rope.linear_factor = factor;
  return rope;
}

}  // namespace llmi
