#include "kernels/cuda/nccl.h"

#include "core/errors.h"
#include "kernels/cuda/opened_library.h"

namespace llmi::cuda {
namespace {

// Declarations from nccl.h, with the same values in all versions of NCCL 2; builds do not need that header.
using NcclStatus = int;  // 0: success
constexpr NcclStatus kNcclInProgress = 7;
constexpr int kNcclBytes = 0;
struct NcclId {
  char bytes[128];
};

}  // namespace

struct Nccl::Library : OpenedLibrary {
  const char* (*describe)(NcclStatus status);
  NcclStatus (*new_id)(NcclId* id);
  NcclStatus (*join)(void** communicator, int num_ranks, NcclId id, int rank);
  NcclStatus (*abort)(void* communicator);
  NcclStatus (*find_error)(void* communicator, NcclStatus* error);
  NcclStatus (*begin_group)();
  NcclStatus (*end_group)();
  NcclStatus (*send)(const void* from, size_t count, int type, int peer, void* communicator, void* stream);
  NcclStatus (*receive)(void* to, size_t count, int type, int peer, void* communicator, void* stream);

  explicit Library(const std::string& name) : OpenedLibrary("NCCL", name) {
    Find("ncclGetErrorString", &describe);
    Find("ncclGetUniqueId", &new_id);
    Find("ncclCommInitRank", &join);
    Find("ncclCommAbort", &abort);
    Find("ncclCommGetAsyncError", &find_error);
    Find("ncclGroupStart", &begin_group);
    Find("ncclGroupEnd", &end_group);
    Find("ncclSend", &send);
    Find("ncclRecv", &receive);
  }

  void Check(NcclStatus status, const char* what) const {
    if (status == 0) return;
    throw Error(ErrorKind::kDevice, "NCCL: " + std::string(what) + ": " + describe(status));
  }
};

Nccl::Nccl(const std::string& library, RankGroup& group)
    : library_(std::make_unique<Library>(library)), rank_(group.rank()), num_ranks_(group.size()) {
  NcclId id = {};
  if (rank_ == 0) library_->Check(library_->new_id(&id), "a name of the ranks");
  group.Tell(&id, sizeof id);
  library_->Check(library_->join(&communicator_, num_ranks_, id, rank_), "the meeting of the ranks");
}

Nccl::~Nccl() {
  if (communicator_ != nullptr) library_->abort(communicator_);
}

void Nccl::Exchange(const RankExchange& exchange, void* stream) {
  library_->Check(library_->begin_group(), "a gather");
  for (const RankGroup::Block& part : exchange.parts) {
    const auto count = static_cast<size_t>(part.row_bytes);
    uint8_t* place = exchange.packed + part.offset;
    if (part.owner != rank_ && (rank_ == 0 || !exchange.to_first)) {
      library_->Check(library_->receive(place, count, kNcclBytes, part.owner, communicator_, stream), "a gather");
    }
    for (int peer = 0; part.owner == rank_ && peer < (exchange.to_first ? 1 : num_ranks_); ++peer) {
      if (peer != rank_) library_->Check(library_->send(place, count, kNcclBytes, peer, communicator_, stream), "a gather");
    }
  }
  library_->Check(library_->end_group(), "a gather");
}

void Nccl::CheckUnderWay() const {
  NcclStatus error = 0;
  library_->Check(library_->find_error(communicator_, &error), "a gather");
  if (error != kNcclInProgress) library_->Check(error, "a gather");
}

}  // namespace llmi::cuda
