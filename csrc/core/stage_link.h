// The two ends of a ring of processes (stages) that one of them has: messages come from the stage before, and go to the one behind, over
// stream sockets. A message that is sent while the other end computes waits in the socket; meanwhile this end takes what comes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace llmi {

class StageLink {
 public:
  // Takes both descriptors.
  StageLink(int in, int out);
  ~StageLink();
  StageLink(const StageLink&) = delete;
  StageLink& operator=(const StageLink&) = delete;

  // Called several times a second while this end waits, with how long it has; its exception ends the wait.
  void set_on_wait(std::function<void(double waited_s)> on_wait) { on_wait_ = std::move(on_wait); }
  // Each throws Error(kWorkerDied) if the stage before or behind has gone, and with the text of SendError if that came.
  void Send(std::span<const uint8_t> bytes) { SendFrame(kMessage, bytes); }
  std::vector<uint8_t> Receive();
  // Both neighbours notice that this end has gone; any thread may call it.
  void Shut() noexcept;
  // Tells the stages behind why there will be no more, unless another thread is sending; any thread may call it.
  void SendError(const std::string& text) noexcept;

 private:
  enum Kind : uint64_t { kMessage, kError };
  void SendFrame(Kind kind, std::span<const uint8_t> bytes);
  bool TakeFrame();
  void ReadSome();
  void Wait(bool to_send, double* waited_s);
  [[noreturn]] void ThrowGone();

  int in_, out_;
  std::mutex sending_;
  std::vector<uint8_t> partial_;
  std::deque<std::vector<uint8_t>> frames_;
  std::function<void(double waited_s)> on_wait_;
};

}  // namespace llmi
