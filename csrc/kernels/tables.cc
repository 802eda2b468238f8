#include "kernels/tables.h"

#include <algorithm>
#include <cstdlib>

#include "core/cpu_features.h"
#include "core/errors.h"

namespace llmi {
namespace {

#define LLMI_REFERENCE_ENTRY(name, args) reference::name,
const KernelTable kReference = {"reference", LLMI_FOR_EACH_KERNEL(LLMI_REFERENCE_ENTRY)};
#undef LLMI_REFERENCE_ENTRY

#if defined(__x86_64__)
#define LLMI_AVX2_ENTRY(name, args) avx2::name,
const KernelTable kAvx2 = {"avx2", LLMI_FOR_EACH_KERNEL(LLMI_AVX2_ENTRY)};
#undef LLMI_AVX2_ENTRY
const KernelTable kAvxVnni = [] {
  KernelTable table = kAvx2;
  table.name = "avx_vnni";
  table.linear_part = avx_vnni::linear_part;
  table.probe_dots = avx_vnni::probe_dots;
  return table;
}();
#define LLMI_AVX512_ENTRY(name, args) avx512::name,
const KernelTable kAvx512 = {"avx512", LLMI_FOR_EACH_KERNEL(LLMI_AVX512_ENTRY)};
#undef LLMI_AVX512_ENTRY
const KernelTable kAvx512Bf16 = [] {
  KernelTable table = kAvx512;
  table.name = "avx512_bf16";
  table.attention = avx512_bf16::attention;
  table.attention_span = avx512_bf16::attention_span;
  return table;
}();
#endif

}  // namespace

std::vector<std::string> AvailableTables() {
  std::vector<std::string> names = {"reference"};
#if defined(__x86_64__)
  if (GetCpuFeatures().avx2) names.emplace_back("avx2");
  if (GetCpuFeatures().avx_vnni) names.emplace_back("avx_vnni");
  if (GetCpuFeatures().avx512) names.emplace_back("avx512");
  if (GetCpuFeatures().avx512_bf16) names.emplace_back("avx512_bf16");
#endif
  return names;
}

const KernelTable& GetKernelTable(const std::string& name) {
  std::string wanted = name;
  if (wanted.empty()) {
    const char* forced = std::getenv("LLMI_ISA");
    wanted = forced != nullptr && *forced != '\0' ? forced : AvailableTables().back();
  }
  const std::vector<std::string> known = {"reference", "avx2", "avx_vnni", "avx512", "avx512_bf16"};
  if (std::find(known.begin(), known.end(), wanted) == known.end()) {
    throw Error(ErrorKind::kInvalidArgument, "LLMI_ISA=" + wanted + " is unknown: reference, avx2, avx_vnni, avx512 or avx512_bf16",
                "LLMI_ISA");
  }
  std::string available;
  for (const std::string& table : AvailableTables()) {
    available += (available.empty() ? "" : ", ") + table;
    if (table != wanted) continue;
#if defined(__x86_64__)
    if (wanted == "avx512_bf16") return kAvx512Bf16;
    if (wanted == "avx512") return kAvx512;
    if (wanted == "avx_vnni") return kAvxVnni;
    if (wanted == "avx2") return kAvx2;
#endif
    return kReference;
  }
  throw Error(ErrorKind::kDevice, "this machine cannot run the " + wanted + " kernels (it can run: " + available + ")", "LLMI_ISA");
}

}  // namespace llmi
