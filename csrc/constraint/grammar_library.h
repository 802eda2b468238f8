// The grammar library llguidance through its C interface, opened at run time. Its own header is not needed: the parts that are used are
// declared here, as its versions 1.7 to 1.9 lay them out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace llmi {

// Objects of the library.
struct LibraryTokenizer;
struct LibraryMatcher;

// The arguments that make a tokenizer of a vocabulary. The library reads struct_size bytes.
struct LibraryTokenizerInit {
  size_t struct_size = sizeof(LibraryTokenizerInit);
  uint32_t vocab_size = 0;
  uint32_t end_token = 0;
  const uint32_t* token_lens = nullptr;  // [vocab_size]
  const uint8_t* token_bytes = nullptr;  // one after the other
  const char* tokenizer_json = nullptr;
  bool tokenize_takes_text = true;  // `tokenize` gets UTF-8; the library splits other bytes off
  // Writes at most output_len tokens and returns how many there are. Called by any thread.
  size_t (*tokenize)(const void* user_data, const uint8_t* bytes, size_t num_bytes, uint32_t* output, size_t output_len) = nullptr;
  bool tokenizes_greedily = false;
  const void* user_data = nullptr;
  const char* const* slices = nullptr;  // null: the library's own
  const uint32_t* more_ends = nullptr;  // after end_token
  uint32_t num_more_ends = 0;
};

// The arguments that make a matcher. The library fills in its defaults; a later version may have more fields than these.
struct LibraryMatcherInit {
  const LibraryTokenizer* tokenizer = nullptr;
  uint32_t log_buffer_level = 0;
  uint32_t log_stderr_level = 0;
  bool forced_tokens_ok = false;
  bool backtrack_ok = false;
  uint64_t limits[7] = {};
  uint64_t room[32] = {};
};

// The functions that llmi calls. Functions that return int32_t give -1 for an error, which the matcher keeps.
struct LibraryFunctions {
  LibraryTokenizer* (*new_tokenizer)(const LibraryTokenizerInit* init, char* error, size_t error_len);
  void (*free_tokenizer)(LibraryTokenizer* tokenizer);
  void (*set_defaults)(LibraryMatcherInit* init, const LibraryTokenizer* tokenizer);
  LibraryMatcher* (*new_matcher)(const LibraryMatcherInit* init, const char* kind, const char* grammar);
  LibraryMatcher* (*clone_matcher)(const LibraryMatcher* matcher);
  void (*free_matcher)(LibraryMatcher* matcher);
  int32_t (*validate)(const LibraryMatcherInit* init, const char* kind, const char* grammar, char* message, size_t message_len);
  size_t (*mask_bytes)(const LibraryMatcher* matcher);
  int32_t (*fill_mask)(LibraryMatcher* matcher, uint32_t* words, size_t num_bytes);
  int32_t (*consume)(LibraryMatcher* matcher, const uint32_t* tokens, size_t num_tokens);
  int32_t (*forced_tokens)(LibraryMatcher* matcher, uint32_t* output, size_t output_len);
  bool (*is_accepting)(LibraryMatcher* matcher);
  const char* (*error)(LibraryMatcher* matcher);  // null without one
};

class GrammarLibrary {
 public:
  // path: the library's file. It stays loaded until the process ends. Throws Error(kInvalidArgument) if it does not load, or lacks a
  // function.
  static std::shared_ptr<const GrammarLibrary> Open(const std::string& path);

  const LibraryFunctions& functions() const { return functions_; }
  // As the library says it, such as "llguidance@1.9.1 derivre@0.3.1"; "" for versions that do not say it.
  const std::string& version() const { return version_; }

 private:
  LibraryFunctions functions_ = {};
  std::string version_;
};

}  // namespace llmi
