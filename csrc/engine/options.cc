#include "engine/options.h"

#include "core/errors.h"

namespace llmi {

SchedulingPolicy ParsePolicy(const std::string& name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  if (name == "static") return SchedulingPolicy::kStatic;
  if (name == "prefill_first") return SchedulingPolicy::kPrefillFirst;
  if (name == "shortest_remaining") return SchedulingPolicy::kShortestRemaining;
  if (name == "longest_prefix") return SchedulingPolicy::kLongestPrefix;
  if (name == "custom") return SchedulingPolicy::kCustom;
  throw Error(ErrorKind::kInvalidArgument, "scheduling_policy '" + name + "' is unknown", "scheduling_policy");
}

DeviceKind ParseDeviceKind(const std::string& name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name == "cuda") return DeviceKind::kCuda;
  if (name == "emulated") return DeviceKind::kEmulated;
  throw Error(ErrorKind::kInvalidArgument, "device must be cpu or cuda", "device");
}

LinearArithmetic ParseLinearArithmetic(const std::string& name) {
  if (name == "auto" || name == "float32") return LinearArithmetic::kF32;
  if (name == "bf16") return LinearArithmetic::kBf16;
  if (name == "fp16") return LinearArithmetic::kF16;
  throw Error(ErrorKind::kInvalidArgument, "linear_dtype '" + name + "' is unknown: auto, float32, bf16 or fp16", "linear_dtype");
}

bool HasTwoBytes(int activation_bits) {
  CheckArgument(activation_bits == 8 || activation_bits == 16, "activation_bits must be 8 or 16");
  return activation_bits == 16;
}

namespace {

// Refuses tensor cores whose outputs would depend on a row's company.
void CheckTensorCores(const EngineOptions& options, Device* device) {
  const bool for_layers = options.linear != LinearArithmetic::kF32 && options.cublas_lt.empty();
  if (!for_layers && options.kv_type != KvType::kBF16) return;
  const std::string why = device->WhyNoTensorCores();
  if (why.empty()) return;
  const std::string option = for_layers ? "linear_dtype" : "attention_dtype";
  throw Error(ErrorKind::kDevice,
              option + " = 'bf16' or 'fp16' multiplies on tensor cores, and those of " + device->name() +
                  " break the promise of equal bits (" + why + "): give " + option + " = 'float32'",
              option);
}

}  // namespace

std::unique_ptr<Device> OpenDevice(const EngineOptions& options) {
  if (options.device == DeviceKind::kCpu) {
    CheckArgument(options.linear != LinearArithmetic::kF16, "linear_dtype = 'fp16' multiplies on a GPU's tensor cores");
    CheckArgument(options.cublas_lt.empty(), "cuBLASLt multiplies on a GPU");
    return nullptr;
  }
  DeviceOptions device;
  device.cublas_lt = options.cublas_lt;
  device.nccl = options.nccl;
  device.ordinal = options.ranks == nullptr ? 0 : options.ranks->rank();
  device.bf16_linear = options.cublas_lt.empty() && options.linear == LinearArithmetic::kBf16;
  device.f16_linear = options.cublas_lt.empty() && options.linear == LinearArithmetic::kF16;
  std::unique_ptr<Device> opened = options.device == DeviceKind::kCuda ? OpenCudaDevice(device) : OpenEmulatedDevice(device);
  CheckTensorCores(options, opened.get());
  return opened;
}

}  // namespace llmi
