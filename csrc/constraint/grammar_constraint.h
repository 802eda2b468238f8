// A grammar of the grammar library as a constraint.
//
// The library counts its limits in work that it has not done before. So every object computes the mask at each place that it passes, and
// a fork goes on from its parent's: which limits are reached depends on the tokens alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "constraint/grammar_vocabulary.h"
#include "constraint/token_constraint.h"

namespace llmi {

class GrammarConstraint final : public TokenConstraint {
 public:
  // The beginning of a grammar's language. grammar: in the library's own form. name: what it is called in errors. A grammar that does not
  // compile gives an object that has an error.
  GrammarConstraint(std::shared_ptr<const GrammarVocabulary> vocabulary, const std::string& grammar, std::string name);
  ~GrammarConstraint() override;
  GrammarConstraint(const GrammarConstraint&) = delete;
  GrammarConstraint& operator=(const GrammarConstraint&) = delete;

  // A copy for a request whose texts end with these tokens. Several threads may call it at once.
  std::unique_ptr<GrammarConstraint> Copy(std::vector<int32_t> ends) const;
  // The error in words; "" without one.
  std::string ErrorText() const;
  // Access for measurements.
  const GrammarVocabulary& vocabulary() const { return *vocabulary_; }
  LibraryMatcher* matcher() const { return matcher_; }
  // What the grammar's compiler left out of account, in words; "" if nothing.
  static std::string Warnings(const GrammarVocabulary& vocabulary, const std::string& grammar);

  void FillMask(std::span<uint32_t> words, int64_t vocab_size) override;
  void Advance(int32_t token) override;
  std::unique_ptr<TokenConstraint> Fork() const override { return Copy(ends_); }
  bool Accepting() override;
  std::vector<int32_t> Forced(int64_t max_tokens) override;

 private:
  GrammarConstraint(const GrammarConstraint& from, LibraryMatcher* matcher, std::vector<int32_t> ends);
  bool Ends(int32_t token) const;
  void Check(int32_t status, const std::string& what) const;

  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const std::string name_;
  const std::vector<int32_t> ends_;
  LibraryMatcher* matcher_;
};

}  // namespace llmi
