// A tokenizer's vocabulary in the grammar library: the bytes of each token, the tokens that end a text, and how a text is written.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "constraint/grammar_library.h"

namespace llmi {

// The tokens with which the tokenizer writes a text. Called by any thread, a few times for each grammar: answers are remembered.
using TokenizeText = std::function<std::vector<uint32_t>(std::string_view text)>;

class GrammarVocabulary {
 public:
  // tokens: the bytes of each id; special ones begin with 0xff. ends: at least one. Throws Error(kInvalidArgument).
  GrammarVocabulary(std::shared_ptr<const GrammarLibrary> library, const std::vector<std::string>& tokens, std::vector<uint32_t> ends,
                    TokenizeText tokenize);
  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  const LibraryFunctions& functions() const { return library_->functions(); }
  const LibraryTokenizer* tokenizer() const { return tokenizer_; }
  const std::vector<uint32_t>& ends() const { return ends_; }
  // Throws what `tokenize` has thrown on this thread since the last call. The library cannot pass it on.
  static void RethrowFailure();

 private:
  std::vector<uint32_t> Tokenize(std::string_view text) const;
  static size_t TokenizeForLibrary(const void* self, const uint8_t* bytes, size_t num_bytes, uint32_t* output, size_t output_len);

  const std::shared_ptr<const GrammarLibrary> library_;
  const std::vector<uint32_t> ends_;
  const TokenizeText tokenize_;
  LibraryTokenizer* tokenizer_ = nullptr;
  mutable std::shared_mutex mutex_;  // of known_
  mutable std::unordered_map<std::string, std::vector<uint32_t>> known_;
};

}  // namespace llmi
