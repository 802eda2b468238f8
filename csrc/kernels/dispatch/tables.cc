#include "kernels/dispatch/tables.h"

#include <cstdlib>

#include "core/cpu_features.h"
#include "core/errors.h"

namespace llmi {
namespace {

#define LLMI_REFERENCE_ENTRY(name, args) reference::name,
const KernelTable kReference = {"reference", LLMI_FOR_EACH_KERNEL(LLMI_REFERENCE_ENTRY)};
#undef LLMI_REFERENCE_ENTRY

#if defined(__x86_64__)
// A copy of `table` with the entries that `change` sets.
template <typename Change>
KernelTable Variant(KernelTable table, const char* name, const Change& change) {
  table.name = name;
  change(table);
  return table;
}

#define LLMI_AVX2_ENTRY(name, args) avx2::name,
const KernelTable kAvx2 = {"avx2", LLMI_FOR_EACH_KERNEL(LLMI_AVX2_ENTRY)};
#undef LLMI_AVX2_ENTRY
const KernelTable kAvxVnni = Variant(kAvx2, "avx_vnni", [](KernelTable& table) {
  table.linear_quantized = avx_vnni::linear_quantized;
  table.probe_dots = avx_vnni::probe_dots;
});
#define LLMI_AVX512_ENTRY(name, args) avx512::name,
const KernelTable kAvx512 = {"avx512", LLMI_FOR_EACH_KERNEL(LLMI_AVX512_ENTRY)};
#undef LLMI_AVX512_ENTRY
const KernelTable kAvx512Bf16 = Variant(kAvx512, "avx512_bf16", [](KernelTable& table) {
  table.attention = avx512_bf16::attention;
  table.attention_span = avx512_bf16::attention_span;
  table.linear_bf16 = avx512_bf16::linear_bf16;
  table.probe_bf16 = avx512_bf16::probe_bf16;
});
#endif

struct Choice {
  const char* name;
  const KernelTable* table;  // null: not on this machine
};

// Slowest first.
std::vector<Choice> Choices() {
#if defined(__x86_64__)
  const CpuFeatures& cpu = GetCpuFeatures();
  return {{"reference", &kReference},
          {"avx2", cpu.avx2 ? &kAvx2 : nullptr},
          {"avx_vnni", cpu.avx_vnni ? &kAvxVnni : nullptr},
          {"avx512", cpu.avx512 ? &kAvx512 : nullptr},
          {"avx512_bf16", cpu.avx512_bf16 ? &kAvx512Bf16 : nullptr}};
#else
  return {{"reference", &kReference}, {"avx2", nullptr}, {"avx_vnni", nullptr}, {"avx512", nullptr}, {"avx512_bf16", nullptr}};
#endif
}

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> AvailableTables() {
  std::vector<std::string> names;
  for (const Choice& choice : Choices()) {
    if (choice.table != nullptr) names.emplace_back(choice.name);
  }
  return names;
}

const KernelTable& GetKernelTable(const std::string& name) {
  std::string wanted = name;
  if (wanted.empty()) {
    const char* forced = std::getenv("LLMI_ISA");
    wanted = forced != nullptr && *forced != '\0' ? forced : AvailableTables().back();
  }
  std::vector<std::string> known;
  for (const Choice& choice : Choices()) {
    known.emplace_back(choice.name);
    if (wanted != choice.name) continue;
    if (choice.table != nullptr) return *choice.table;
    throw Error(ErrorKind::kDevice, "this machine cannot run the " + wanted + " kernels (it can run: " + Listed(AvailableTables()) + ")",
                "LLMI_ISA");
  }
  throw Error(ErrorKind::kInvalidArgument, "LLMI_ISA=" + wanted + " is unknown: it is one of " + Listed(known), "LLMI_ISA");
}

}  // namespace llmi
