// Exchanges between GPUs by NCCL, a library of the machine that is loaded when an option names it (DeviceOptions::nccl). Bytes are moved,
// never added, so bits do not depend on it.
#pragma once

#include <memory>
#include <string>

#include "core/rank_group.h"
#include "kernels/cuda/rank_exchange.h"

namespace llmi::cuda {

class Nccl {
 public:
  // Meets the other ranks of the group, which all call it. library: a path, or a name that the linker finds. Throws Error(kDevice).
  Nccl(const std::string& library, RankGroup& group);
  ~Nccl();  // gives up what is under way
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // On a stream of CUDA's, asynchronously; may be recorded. Throws Error(kDevice).
  void Exchange(const RankExchange& exchange, void* stream);
  // Throws Error(kDevice) if an exchange has failed.
  void CheckUnderWay() const;

 private:
  struct Library;

  std::unique_ptr<Library> library_;
  int rank_;
  int num_ranks_;
  void* communicator_ = nullptr;
};

}  // namespace llmi::cuda
