// Seconds of the steady clock, for the engine's records and measurements.
#pragma once

#include <chrono>

namespace llmi {

inline double NowSeconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Adds its own lifetime in seconds to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double* total) : total_(total), start_(NowSeconds()) {}
  ~Stopwatch() { *total_ += NowSeconds() - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* total_;
  double start_;
};

}  // namespace llmi
