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
  kWorkerDied,        // another process of the engine has ended; field: its rank and pid
  kInterrupted,       // the caller no longer waits for the result
  kInternal,          // a broken invariant
};

// What must change so that an error does not come again.
enum class Fault {
  kRequest,  // its parameters, its length, or its code
  kModel,    // its file, or the numbers that it computes
  kMachine,  // memory, a device, or the engine's own state
};

inline Fault UsualFault(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kHook:
    case ErrorKind::kConstraint:
    case ErrorKind::kDraft:
    case ErrorKind::kInterrupted: return Fault::kRequest;
    case ErrorKind::kModelFile:
    case ErrorKind::kUnsupportedModel:
    case ErrorKind::kNonFiniteLogits: return Fault::kModel;
    default: return Fault::kMachine;
  }
}

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string field = "")
      : std::runtime_error(message), kind_(kind), fault_(UsualFault(kind)), field_(std::move(field)) {}

  ErrorKind kind() const { return kind_; }
  Fault fault() const { return fault_; }
  // The file field, tensor or parameter that is wrong, or the type of what a hook raised; empty if there is none.
  const std::string& field() const { return field_; }

  static Error OutOfMemory(const std::string& message, uint64_t needed_bytes, uint64_t available_bytes, Fault fault = Fault::kMachine) {
    Error error(ErrorKind::kOutOfMemory, message);
    error.fault_ = fault;
    error.needed_bytes = needed_bytes;
    error.available_bytes = available_bytes;
    return error;
  }

  // kNonFiniteLogits, where the model's numbers were sound until the request's parameters changed them.
  static Error NonFiniteByParameters(const std::string& message) {
    Error error(ErrorKind::kNonFiniteLogits, message);
    error.fault_ = Fault::kRequest;
    return error;
  }

  uint64_t needed_bytes = 0;
  uint64_t available_bytes = 0;

 private:
  ErrorKind kind_;
  Fault fault_;
  std::string field_;
};

inline void CheckArgument(bool condition, const char* message) {
  if (!condition) throw Error(ErrorKind::kInvalidArgument, message);
}

inline void CheckInternal(bool condition, const char* message) {
  if (!condition) throw Error(ErrorKind::kInternal, message);
}

}  // namespace llmi
