// A block of the prefix cache as bytes that outlive the process: what it is of, its tokens, and K and V of each layer.
//
// A block's key is the SHA-256 of its parent's key and its tokens; that of a root is of the engine's identity (model, spec, arithmetic,
// type of cache, block size, layout) and of a salt. So a key names everything that the block's bits depend on. The file says the same in
// plain, and a reader compares it: a name is not trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/sha256.h"

namespace llmi {

using PrefixKey = Sha256Digest;

PrefixKey RootKey(const std::string& identity, const std::string& salt);
PrefixKey ChildKey(const PrefixKey& parent, std::span<const int32_t> tokens);
std::string HexOf(const PrefixKey& key);

// What a block's bytes are of.
struct SavedHeader {
  std::string identity;
  std::string label;  // the model's name, for lists alone
  PrefixKey root{};   // of the identity and the salt
  PrefixKey parent{};
  int64_t index = 0;             // of the block in its text
  std::vector<int32_t> tokens;   // of this block
  std::vector<uint8_t> present;  // by layer that keeps K and V: 0: its window has passed the block, so it is not there

  // Whether both are of the same block of the same text. Labels may differ, and so may what is present.
  bool IsOfSameBlock(const SavedHeader& other) const;
};

// The header's bytes with zeros to a multiple of 64; K and V follow it. SealBlock is called when they are there.
std::vector<uint8_t> HeaderBytes(const SavedHeader& header);
// Writes the length and the checksum of the whole into its header.
void SealBlock(std::vector<uint8_t>* block);

enum class SavedFault : uint8_t {
  kNone,
  kMissing,    // there is no such file any more
  kCut,        // fewer bytes than it says, or more
  kDamaged,    // no header, or a wrong checksum
  kExchanged,  // a sound block of another text, model or arithmetic
};

struct ParsedBlock {
  SavedFault fault = SavedFault::kDamaged;
  SavedHeader header;                    // if fault is kNone
  std::span<const uint8_t> keys_values;  // likewise; inside the given bytes
};
// Reads a block from bytes that anybody may have written.
ParsedBlock ParseBlock(std::span<const uint8_t> bytes);
// Reads the header alone, of the file's first bytes: without a checksum. None: it is no header.
std::optional<SavedHeader> ParseHeader(std::span<const uint8_t> bytes);
// No header is longer.
constexpr size_t kMostHeaderBytes = 32 * 1024;

}  // namespace llmi
