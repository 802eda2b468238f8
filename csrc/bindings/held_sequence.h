// A sequence of the lab as Python holds it. The engine holds a sequence that has cache, too: when Python's object goes, on whatever thread
// and after whatever exception between two lines of Python, the cache is given back.
#pragma once

#include <memory>

#include "bindings/engine_handle.h"
#include "engine/lab.h"

namespace llmi {

class HeldSequence {
 public:
  // engine: has been started, and outlives this object (py::keep_alive).
  HeldSequence(EngineHandle& engine, std::shared_ptr<LabSequence> sequence);
  ~HeldSequence() { Close(); }
  HeldSequence(const HeldSequence&) = delete;
  HeldSequence& operator=(const HeldSequence&) = delete;

  const std::shared_ptr<LabSequence>& sequence() const { return sequence_; }
  bool is_closed() const { return is_closed_; }
  // Gives the cache back soon; the second call does nothing. The caller may hold the GIL or not, and the engine may have ended.
  void Close();

 private:
  Lab& lab_;
  const std::shared_ptr<LabSequence> sequence_;
  bool is_closed_ = false;
};

}  // namespace llmi
