// An opened engine, as Python holds it. It can be closed, interrupted and deleted with and without the GIL.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/open_engine.h"

namespace llmi {

class EngineHandle {
 public:
  explicit EngineHandle(std::unique_ptr<OpenedEngine> opened) : opened_(std::move(opened)) {}
  // Starts the engine's thread. bytes: of each token id. special: the text of each special token, by id.
  void Start(const std::vector<pybind11::bytes>& bytes, const std::map<int64_t, std::string>& special, SavedPrefixOptions saved_prefixes);
  Engine& engine() {
    if (opened_->engine() == nullptr) throw Error(ErrorKind::kClosed, "the engine is closed");
    return *opened_->engine();
  }
  // Ends the engine and waits for its thread. Call it with the GIL held. After half a second it raises KeyboardInterrupt in a hook that
  // still runs. Throws what a signal handler raises meanwhile; the engine then ends by itself. patience_s: the longest wait, for the end
  // of the program; after it an engine whose hook has not returned is abandoned.
  void Close(double patience_s);
  // Raises KeyboardInterrupt in the hook of these requests that is running, if one is. Call it with the GIL held.
  bool InterruptHook(const std::vector<uint64_t>& request_ids);
  // Deletes `handle`; the caller may hold the GIL or not. On the engine's own thread, which may drop the last reference together with a
  // hook, a new thread deletes it. The child of a fork does not delete it: another thread of the parent may have held its locks.
  static void Delete(EngineHandle* handle);
  pybind11::dict Info() const;
  int64_t vocab_size() const { return opened_->model().vocab_size; }
  int64_t hidden_size() const { return opened_->model().hidden_size; }
  // layer: from 1 on.
  int64_t num_heads(int layer) const { return opened_->model().layers[static_cast<size_t>(layer - 1)].attention.num_heads; }

 private:
  std::unique_ptr<OpenedEngine> opened_;
  bool abandoned_ = false;  // its thread still ran a hook at the end of the program
};

struct EngineHandleDeleter {
  void operator()(EngineHandle* handle) const { EngineHandle::Delete(handle); }
};

}  // namespace llmi
