#include "constraint/grammar_vocabulary.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr size_t kMaxKnownTexts = 65536;  // keys and constants of grammars; 100 bytes each
thread_local std::exception_ptr failure;

}  // namespace

GrammarVocabulary::GrammarVocabulary(std::shared_ptr<const GrammarLibrary> library, const std::vector<std::string>& tokens,
                                     std::vector<uint32_t> ends, TokenizeText tokenize)
    : library_(std::move(library)), ends_(std::move(ends)), tokenize_(std::move(tokenize)) {
  CheckArgument(!ends_.empty(), "a grammar's vocabulary needs a token that ends texts");
  std::vector<uint32_t> lens;
  std::string bytes;
  for (const std::string& token : tokens) {
    lens.push_back(static_cast<uint32_t>(token.size()));
    bytes += token;
  }
  LibraryTokenizerInit init;
  init.vocab_size = static_cast<uint32_t>(tokens.size());
  init.end_token = ends_[0];
  init.token_lens = lens.data();
  init.token_bytes = reinterpret_cast<const uint8_t*>(bytes.data());
  init.tokenize = &TokenizeForLibrary;
  init.user_data = this;
  init.more_ends = ends_.data() + 1;
  init.num_more_ends = static_cast<uint32_t>(ends_.size() - 1);
  std::array<char, 512> error = {};
  tokenizer_ = functions().new_tokenizer(&init, error.data(), error.size());
  if (tokenizer_ == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, std::string("the grammar library refuses the vocabulary: ") + error.data(), "tokens");
  }
}

GrammarVocabulary::~GrammarVocabulary() {
  if (tokenizer_ != nullptr) functions().free_tokenizer(tokenizer_);
}

void GrammarVocabulary::RethrowFailure() {
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
}

std::vector<uint32_t> GrammarVocabulary::Tokenize(std::string_view text) const {
  const std::string key(text);
  {
    const std::shared_lock lock(mutex_);
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
  }
  std::vector<uint32_t> tokens = tokenize_(text);
  const std::unique_lock lock(mutex_);
  if (known_.size() >= kMaxKnownTexts) known_.clear();
  known_[key] = tokens;
  return tokens;
}

size_t GrammarVocabulary::TokenizeForLibrary(const void* self, const uint8_t* bytes, size_t num_bytes, uint32_t* output,
                                             size_t output_len) {
  try {
    const auto* vocabulary = static_cast<const GrammarVocabulary*>(self);
    const std::vector<uint32_t> tokens = vocabulary->Tokenize({reinterpret_cast<const char*>(bytes), num_bytes});
    std::copy_n(tokens.begin(), std::min(tokens.size(), output_len), output);
    return tokens.size();
  } catch (...) {
    failure = std::current_exception();
    return 0;
  }
}

}  // namespace llmi
