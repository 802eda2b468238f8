// Values and batches as bytes, for a process on a machine of the same byte order.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "cache/kv_groups.h"
#include "model/forward_batch.h"
#include "model/spec.h"

namespace llmi {

template <typename T>
std::vector<uint8_t> BytesOf(std::span<const T> values) {
  std::vector<uint8_t> bytes(values.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<uint8_t> ToBytes(const ForwardBatch& batch);
// The reverse. Throws Error(kInvalidArgument) for too few or too many bytes, and for rows, segments or offsets out of range.
ForwardBatch BatchFromBytes(std::span<const uint8_t> bytes);
// Throws Error(kInvalidArgument) for tokens, layers, positions and pages that the model or the cache does not have.
void CheckBatch(const ForwardBatch& batch, const ModelSpec& spec, const KvGroups& groups, int64_t num_pages);

}  // namespace llmi
