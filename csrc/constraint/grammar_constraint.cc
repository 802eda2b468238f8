#include "constraint/grammar_constraint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/errors.h"

namespace llmi {
namespace {

constexpr const char* kGrammarForm = "guidance";  // a list of grammars as JSON, or Lark
constexpr size_t kMaxReason = 200;

LibraryMatcherInit Init(const GrammarVocabulary& vocabulary) {
  LibraryMatcherInit init;
  vocabulary.functions().set_defaults(&init, vocabulary.tokenizer());
  init.log_buffer_level = 0;
  init.log_stderr_level = 0;
  return init;
}

LibraryMatcher* Compile(const GrammarVocabulary& vocabulary, const std::string& grammar) {
  const LibraryMatcherInit init = Init(vocabulary);
  LibraryMatcher* matcher = vocabulary.functions().new_matcher(&init, kGrammarForm, grammar.c_str());
  GrammarVocabulary::RethrowFailure();
  return matcher;
}

void SetBit(std::span<uint32_t> words, int64_t token, bool value) {
  const auto word = static_cast<size_t>(token / 32);
  const uint32_t bit = 1U << (token % 32);
  if (word < words.size()) words[word] = value ? words[word] | bit : words[word] & ~bit;
}

}  // namespace

GrammarConstraint::GrammarConstraint(std::shared_ptr<const GrammarVocabulary> vocabulary, const std::string& grammar, std::string name)
    : vocabulary_(std::move(vocabulary)), name_(std::move(name)), matcher_(Compile(*vocabulary_, grammar)) {}

GrammarConstraint::GrammarConstraint(const GrammarConstraint& from, LibraryMatcher* matcher, std::vector<int32_t> ends)
    : vocabulary_(from.vocabulary_), name_(from.name_), ends_(std::move(ends)), matcher_(matcher) {}

GrammarConstraint::~GrammarConstraint() { vocabulary_->functions().free_matcher(matcher_); }

std::unique_ptr<GrammarConstraint> GrammarConstraint::Copy(std::vector<int32_t> ends) const {
  LibraryMatcher* matcher = vocabulary_->functions().clone_matcher(matcher_);
  return std::unique_ptr<GrammarConstraint>(new GrammarConstraint(*this, matcher, std::move(ends)));
}

std::string GrammarConstraint::ErrorText() const {
  const char* text = vocabulary_->functions().error(matcher_);
  return text == nullptr ? "" : text;
}

std::string GrammarConstraint::Warnings(const GrammarVocabulary& vocabulary, const std::string& grammar) {
  const LibraryMatcherInit init = Init(vocabulary);
  std::array<char, 4096> message = {};
  const int32_t status = vocabulary.functions().validate(&init, kGrammarForm, grammar.c_str(), message.data(), message.size());
  return status == 1 ? message.data() : "";
}

bool GrammarConstraint::Ends(int32_t token) const { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); }

void GrammarConstraint::Check(int32_t status, const std::string& what) const {
  GrammarVocabulary::RethrowFailure();
  if (status >= 0) return;
  std::string reason = ErrorText();
  reason = reason.substr(0, std::min(reason.find('\n'), kMaxReason));
  throw Error(ErrorKind::kConstraint, "the " + name_ + " cannot " + what + ": " + (reason.empty() ? "the library gives no reason" : reason),
              "structured_outputs");
}

void GrammarConstraint::FillMask(std::span<uint32_t> words, int64_t vocab_size) {
  const LibraryFunctions& functions = vocabulary_->functions();
  const size_t num_bytes = functions.mask_bytes(matcher_);
  thread_local std::vector<uint32_t> mask;  // its size is that of the tokenizer's vocabulary
  mask.resize(num_bytes / sizeof(uint32_t));
  Check(functions.fill_mask(matcher_, mask.data(), num_bytes), "go on");
  const size_t common = std::min(mask.size(), words.size());
  std::copy_n(mask.begin(), common, words.begin());
  std::fill(words.begin() + static_cast<int64_t>(common), words.end(), 0);
  if (vocab_size % 32 != 0) words[static_cast<size_t>(vocab_size / 32)] &= (1U << (vocab_size % 32)) - 1;
  for (const uint32_t end : vocabulary_->ends()) SetBit(words, end, false);
  const bool final = !ends_.empty() && Accepting();
  for (const int32_t end : ends_) SetBit(words, end, final);
}

void GrammarConstraint::Advance(int32_t token) {
  if (Ends(token)) return;
  const auto id = static_cast<uint32_t>(token);
  Check(vocabulary_->functions().consume(matcher_, &id, 1), "go on after token " + std::to_string(token));
}

bool GrammarConstraint::Accepting() { return vocabulary_->functions().is_accepting(matcher_); }

std::vector<int32_t> GrammarConstraint::Forced(int64_t max_tokens) {
  std::vector<uint32_t> tokens(static_cast<size_t>(std::max<int64_t>(0, max_tokens)));
  if (tokens.empty()) return {};
  const int32_t count = vocabulary_->functions().forced_tokens(matcher_, tokens.data(), tokens.size());
  Check(count, "name forced tokens");
  return {tokens.begin(), tokens.begin() + count};
}

}  // namespace llmi
