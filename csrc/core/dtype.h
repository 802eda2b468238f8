// Element types of tensors on disk, and the storage types of the KV cache.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace llmi {

// Types of tensors in the files that llmi reads. The quantised types are GGUF's, with blocks of 32, 64 or 256 values; and W8, which is
// in no file: model/checkpoints makes it of quantised checkpoints. Types kI8 to kF8E8M0 stand only in these checkpoints.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kTQ2_0,
  kW8,  // [2] fp32 scales of 16 values each, 32 signed codes
  kI8,
  kU8,
  kI32,
  kI64,
  kF8E4M3,
  kF8E8M0,  // a power of two
  kTQ1_0,   // this and those below are unpacked while they are loaded
  kNVFP4,
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S
};

struct DTypeInfo {
  const char* name;
  uint32_t block_size;   // values in a block
  uint32_t block_bytes;  // bytes in a block
};

constexpr DTypeInfo kDTypeInfos[] = {
    {"F32", 1, 4},      {"F16", 1, 2},        {"BF16", 1, 2},       {"Q4_0", 32, 18},   {"Q4_1", 32, 20},     {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},   {"Q8_0", 32, 34},     {"Q2_K", 256, 84},    {"Q3_K", 256, 110}, {"Q4_K", 256, 144},   {"Q5_K", 256, 176},
    {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18},   {"IQ4_XS", 256, 136}, {"MXFP4", 32, 17},  {"TQ2_0", 256, 66},   {"W8", 32, 40},
    {"I8", 1, 1},       {"U8", 1, 1},         {"I32", 1, 4},        {"I64", 1, 8},      {"F8_E4M3", 1, 1},    {"F8_E8M0", 1, 1},
    {"TQ1_0", 256, 54}, {"NVFP4", 64, 36},    {"IQ1_S", 256, 50},   {"IQ1_M", 256, 56}, {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74},
    {"IQ2_S", 256, 82}, {"IQ3_XXS", 256, 98}, {"IQ3_S", 256, 110},
};

constexpr const DTypeInfo& Info(DType dtype) { return kDTypeInfos[static_cast<uint8_t>(dtype)]; }
constexpr bool IsQuantized(DType dtype) { return Info(dtype).block_size > 1; }
// Types of parts of a quantised checkpoint: no weights by themselves.
constexpr bool IsCheckpointPart(DType dtype) { return dtype >= DType::kI8 && dtype <= DType::kF8E8M0; }

// kInt8: codes, with an fp16 scale for each 16 elements of a token's head. kBF16: elements in pairs, the order that bf16 dots need
// (kernels/layout/kv_layout.h). kF8: e4m3.
enum class KvType : uint8_t { kF16, kF32, kInt8, kBF16, kF8 };
LLMI_HD constexpr uint32_t KvTypeBytes(KvType type) {
  return type == KvType::kInt8 || type == KvType::kF8 ? 1 : type == KvType::kF32 ? 4 : 2;
}

}  // namespace llmi
