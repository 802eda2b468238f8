// One exception type for the core, with a kind for each cause. The bindings turn each kind into a Python class of its own; the layers below
// them do not know Python.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace llmi {

enum class ErrorKind {
  kInvalidArgument,   // a value outside its range
  kModelFile,         // a file that is truncated, corrupt or inconsistent
  kUnsupportedModel,  // a sound file of a kind that llmi does not run
  kOutOfMemory,       // needed_bytes, available_bytes
  kNonFiniteLogits,   // NaN or infinity where probabilities are needed
  kHook,              // user code raised
  kConstraint,        // no token is allowed where one must follow
  kDraft,             // a drafter raised, or made an invalid proposal
  kBusy,              // the engine was called from inside one of its own hooks
  kDevice,            // the machine lacks a device or a feature that the options need
  kClosed,            // the engine is closed
  kInterrupted,       // the caller no longer waits for the result
  kInternal,          // a broken invariant
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string field = "")
      : std::runtime_error(message), kind_(kind), field_(std::move(field)) {}

  ErrorKind kind() const { return kind_; }
  // The file field, tensor or parameter that is wrong; empty if there is none.
  const std::string& field() const { return field_; }

  static Error OutOfMemory(const std::string& message, uint64_t needed_bytes, uint64_t available_bytes) {
    Error error(ErrorKind::kOutOfMemory, message);
    error.needed_bytes = needed_bytes;
    error.available_bytes = available_bytes;
    return error;
  }

  uint64_t needed_bytes = 0;
  uint64_t available_bytes = 0;

 private:
  ErrorKind kind_;
  std::string field_;
};

inline void CheckArgument(bool condition, const char* message) {
  if (!condition) throw Error(ErrorKind::kInvalidArgument, message);
}

inline void CheckInternal(bool condition, const char* message) {
  if (!condition) throw Error(ErrorKind::kInternal, message);
}

}  // namespace llmi
