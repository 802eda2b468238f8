#include "core/stage_link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/errors.h"

namespace llmi {
namespace {

struct FrameHeader {
  uint64_t kind;
  uint64_t num_bytes;
};

constexpr uint64_t kMostFrameBytes = uint64_t{1} << 34;
constexpr int kLookMs = 20;  // how long an end sleeps before it looks whether the others are there
constexpr size_t kReadBytes = size_t{1} << 18;

constexpr int kLooks = 50;  // for the process that has ended

std::vector<uint8_t> FrameOf(uint64_t kind, std::span<const uint8_t> bytes) {
  const FrameHeader header = {kind, bytes.size()};
  std::vector<uint8_t> frame(sizeof header + bytes.size());
  std::memcpy(frame.data(), &header, sizeof header);
  if (!bytes.empty()) std::memcpy(frame.data() + sizeof header, bytes.data(), bytes.size());
  return frame;
}

}  // namespace

StageLink::StageLink(int in, int out) : in_(in), out_(out) {
  for (const int descriptor : {in_, out_}) fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

StageLink::~StageLink() {
  close(in_);
  close(out_);
}

void StageLink::Wait(bool to_send, double* waited_s) {
  pollfd ends[2] = {{in_, POLLIN, 0}, {out_, POLLOUT, 0}};
  const int found = poll(ends, to_send ? 2 : 1, kLookMs);
  if (found < 0 && errno != EINTR) ThrowGone();
  if (found != 0) return;
  *waited_s += kLookMs / 1e3;
  if (on_wait_) on_wait_(*waited_s);
}

// on_wait may know which one.
void StageLink::ThrowGone() {
  for (int i = 0; i < kLooks && on_wait_; ++i) {
    on_wait_(0);
    poll(nullptr, 0, kLookMs);
  }
  throw Error(ErrorKind::kWorkerDied, "a stage of the pipeline has ended");
}

// What has come, without waiting.
void StageLink::ReadSome() {
  const size_t size = partial_.size();
  partial_.resize(size + kReadBytes);
  const ssize_t count = recv(in_, partial_.data() + size, kReadBytes, 0);
  partial_.resize(size + static_cast<size_t>(count > 0 ? count : 0));
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    ThrowGone();
  }
  while (TakeFrame()) continue;
}

// Moves a whole message from `partial_` to `frames_`.
bool StageLink::TakeFrame() {
  FrameHeader header = {};
  if (partial_.size() < sizeof header) return false;
  std::memcpy(&header, partial_.data(), sizeof header);
  if (header.kind > kError || header.num_bytes > kMostFrameBytes) throw Error(ErrorKind::kInternal, "stages: a message of no known form");
  if (partial_.size() - sizeof header < header.num_bytes) return false;
  const auto begin = partial_.begin() + sizeof header, end = begin + static_cast<std::ptrdiff_t>(header.num_bytes);
  if (header.kind == kError) throw Error(ErrorKind::kWorkerDied, std::string(begin, end));
  frames_.emplace_back(begin, end);
  partial_.erase(partial_.begin(), end);
  return true;
}

std::vector<uint8_t> StageLink::Receive() {
  double waited_s = 0;
  while (frames_.empty()) {
    Wait(false, &waited_s);
    ReadSome();
  }
  std::vector<uint8_t> frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

void StageLink::SendFrame(Kind kind, std::span<const uint8_t> bytes) {
  const std::scoped_lock lock(sending_);
  const std::vector<uint8_t> whole = FrameOf(kind, bytes);
  double waited_s = 0;
  for (size_t sent = 0; sent < whole.size();) {
    const ssize_t count = send(out_, whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
    if (count > 0) {
      sent += static_cast<size_t>(count);
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      ThrowGone();
    }
    Wait(true, &waited_s);
    ReadSome();
  }
}

void StageLink::Shut() noexcept {
  shutdown(in_, SHUT_RDWR);
  shutdown(out_, SHUT_RDWR);
}

void StageLink::SendError(const std::string& text) noexcept {
  const std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock) return;  // in the middle of a message
  const std::vector<uint8_t> frame = FrameOf(kError, {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  (void)send(out_, frame.data(), frame.size(), MSG_NOSIGNAL);  // if it does not fit they notice that this end has gone
}

}  // namespace llmi
