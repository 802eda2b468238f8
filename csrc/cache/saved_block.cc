#include "cache/saved_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

namespace llmi {
namespace {

constexpr std::string_view kMagic = "llmi-kv1";
constexpr size_t kMostTextBytes = 4096;
constexpr size_t kMostTokens = 1024;  // in a block
constexpr size_t kMostLayers = 4096;
constexpr size_t kAlignment = 64;

// The header's first part; texts, tokens and layers follow it.
struct Start {
  char magic[8];
  uint64_t checksum;  // of all bytes after it
  uint64_t num_bytes;
  uint32_t identity_bytes, label_bytes, num_tokens, num_layers;
  uint64_t index;
  PrefixKey root, parent;
};
static_assert(sizeof(Start) == 112 && std::endian::native == std::endian::little);
constexpr size_t kUnsummed = 16;  // bytes before those that the checksum is of

// Four sums over words by turns, so that a processor computes them side by side. It finds damage; it is no defence against forgers.
uint64_t Checksum(std::span<const uint8_t> bytes) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
  uint64_t sums[4] = {1, 2, 3, bytes.size()};
  const auto add = [&](uint64_t& sum, uint64_t word) { sum = std::rotl((sum ^ word) * kOdd, 29); };
  size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes.data() + at, sizeof(words));
    for (size_t i = 0; i < 4; ++i) add(sums[i], words[i]);
  }
  for (; at < bytes.size(); ++at) add(sums[0], bytes[at]);
  for (size_t i = 1; i < 4; ++i) add(sums[0], sums[i]);
  return sums[0] ^ (sums[0] >> 32);
}

size_t PaddedHeaderBytes(const Start& start) {
  const size_t bytes =
      sizeof(Start) + start.identity_bytes + start.label_bytes + 4 * static_cast<size_t>(start.num_tokens) + start.num_layers;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool IsSound(const Start& start) {
  return std::string_view(start.magic, sizeof(start.magic)) == kMagic && start.identity_bytes <= kMostTextBytes &&
         start.label_bytes <= kMostTextBytes && start.num_tokens > 0 && start.num_tokens <= kMostTokens && start.num_layers > 0 &&
         start.num_layers <= kMostLayers && start.index <= INT32_MAX;
}

}  // namespace

PrefixKey RootKey(const std::string& identity, const std::string& salt) {
  Sha256 hash;
  const uint64_t length = identity.size();
  hash.Add(&length, sizeof(length));
  hash.Add(identity.data(), identity.size());
  hash.Add(salt.data(), salt.size());
  return hash.Finish();
}

PrefixKey ChildKey(const PrefixKey& parent, std::span<const int32_t> tokens) {
  Sha256 hash;
  hash.Add(parent.data(), parent.size());
  hash.Add(tokens.data(), tokens.size_bytes());
  return hash.Finish();
}

std::string HexOf(const PrefixKey& key) {
  std::string hex;
  for (const uint8_t byte : key) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

bool SavedHeader::IsOfSameBlock(const SavedHeader& other) const {
  return identity == other.identity && root == other.root && parent == other.parent && index == other.index && tokens == other.tokens &&
         present.size() == other.present.size();
}

std::vector<uint8_t> HeaderBytes(const SavedHeader& header) {
  Start start{};
  std::copy(kMagic.begin(), kMagic.end(), start.magic);
  start.identity_bytes = static_cast<uint32_t>(header.identity.size());
  start.label_bytes = static_cast<uint32_t>(header.label.size());
  start.num_tokens = static_cast<uint32_t>(header.tokens.size());
  start.num_layers = static_cast<uint32_t>(header.present.size());
  start.index = static_cast<uint64_t>(header.index);
  start.root = header.root;
  start.parent = header.parent;
  std::vector<uint8_t> bytes(PaddedHeaderBytes(start));
  uint8_t* to = bytes.data();
  const auto put = [&](const void* from, size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(to, from, num_bytes);
    to += num_bytes;
  };
  put(&start, sizeof(start));
  put(header.identity.data(), header.identity.size());
  put(header.label.data(), header.label.size());
  put(header.tokens.data(), 4 * header.tokens.size());
  put(header.present.data(), header.present.size());
  return bytes;
}

void SealBlock(std::vector<uint8_t>* block) {
  const uint64_t num_bytes = block->size();
  std::memcpy(block->data() + offsetof(Start, num_bytes), &num_bytes, sizeof(num_bytes));
  const uint64_t checksum = Checksum(std::span<const uint8_t>(*block).subspan(kUnsummed));
  std::memcpy(block->data() + offsetof(Start, checksum), &checksum, sizeof(checksum));
}

std::optional<SavedHeader> ParseHeader(std::span<const uint8_t> bytes) {
  if (bytes.size() < sizeof(Start)) return std::nullopt;
  Start start;
  std::memcpy(&start, bytes.data(), sizeof(start));
  if (!IsSound(start) || PaddedHeaderBytes(start) > bytes.size()) return std::nullopt;
  SavedHeader header;
  header.root = start.root;
  header.parent = start.parent;
  header.index = static_cast<int64_t>(start.index);
  const uint8_t* from = bytes.data() + sizeof(Start);
  header.identity.assign(from, from + start.identity_bytes);
  from += start.identity_bytes;
  header.label.assign(from, from + start.label_bytes);
  from += start.label_bytes;
  header.tokens.resize(start.num_tokens);
  std::memcpy(header.tokens.data(), from, 4 * header.tokens.size());
  from += 4 * header.tokens.size();
  header.present.assign(from, from + start.num_layers);
  return header;
}

ParsedBlock ParseBlock(std::span<const uint8_t> bytes) {
  if (bytes.size() < sizeof(Start)) return {SavedFault::kCut, {}, {}};
  Start start;
  std::memcpy(&start, bytes.data(), sizeof(start));
  if (!IsSound(start)) return {SavedFault::kDamaged, {}, {}};
  if (start.num_bytes != bytes.size() || PaddedHeaderBytes(start) > bytes.size()) return {SavedFault::kCut, {}, {}};
  if (start.checksum != Checksum(bytes.subspan(kUnsummed))) return {SavedFault::kDamaged, {}, {}};
  return {SavedFault::kNone, *ParseHeader(bytes), bytes.subspan(PaddedHeaderBytes(start))};
}

}  // namespace llmi
