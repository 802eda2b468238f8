// The schemes by the name that config.json gives them.
#include "core/errors.h"
#include "model/checkpoints/scheme.h"

namespace llmi::checkpoints {
namespace {

struct Entry {
  const char* method;
  std::unique_ptr<Scheme> (*read)(const SchemeConfig& config);
};

constexpr Entry kSchemes[] = {
    {"awq", ReadAwq},
    {"bitsandbytes", ReadBitsandbytes},
    {"compressed-tensors", ReadCompressedTensors},
    {"fp8", ReadFp8},
    {"gptq", ReadGptq},
    {"mxfp4", ReadMxfp4},
    {"torchao", ReadTorchao},
};

}  // namespace

std::unique_ptr<Scheme> ReadScheme(const SchemeConfig& config) {
  std::string known;
  for (const Entry& entry : kSchemes) {
    if (config.method() == entry.method) return entry.read(config);
    known += (known.empty() ? "" : ", ") + std::string(entry.method);
  }
  throw Error(ErrorKind::kUnsupportedModel,
              config.fields().source() + ": the weights are quantised by " + config.method().substr(0, 64) +
                  ", which llmi does not read (it reads " + known + "): take the model's unquantised safetensors, or a GGUF file of it",
              "quantization_config");
}

}  // namespace llmi::checkpoints
