#include "bindings/held_sequence.h"

#include <utility>

#include "bindings/gil.h"

namespace llmi {

HeldSequence::HeldSequence(EngineHandle& engine, std::shared_ptr<LabSequence> sequence)
    : lab_(engine.engine().lab()), sequence_(std::move(sequence)) {}

void HeldSequence::Close() {
  if (std::exchange(is_closed_, true)) return;
  if (PyGILState_Check() != 0) {
    const GilReleased released;  // the engine thread may want it while it holds the lock of its mail
    lab_.Close(sequence_);
  } else {
    lab_.Close(sequence_);
  }
}

}  // namespace llmi
