// A constraint on a text: which tokens may come next, token by token. An object is a place in the constraint's language.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace llmi {

// Words of a mask of vocab_size tokens: token t is bit t % 32 of word t / 32.
constexpr int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// Thread rule: one thread at a time; different objects do not share what changes. Every call may throw Error(kConstraint), or
// Error(kHook) from Python, and the object is of no use afterwards.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Fills the mask of the next token: words [MaskWords(vocab_size)], all bits written, 0 past the last token. Tokens that end the text are
  // allowed where it may end, and only there. All 0: nothing may follow, and the text is incomplete.
  virtual void FillMask(std::span<uint32_t> words, int64_t vocab_size) = 0;
  // Goes on after the token, which the mask allowed. A token that ends the text leaves the place as it is (ignore_eos).
  virtual void Advance(int32_t token) = 0;
  // Another object at this place.
  virtual std::unique_ptr<TokenConstraint> Fork() const = 0;
  // Whether the text may end here.
  virtual bool Accepting() = 0;
  // Tokens that must follow, in order; empty if there is a choice, or if none are known. At most `max_tokens`.
  virtual std::vector<int32_t> Forced(int64_t max_tokens) = 0;
  // Whether its calls run code of the user, and so belong on the engine thread.
  virtual bool runs_user_code() const { return false; }
};

// A filled mask.
struct TokenMask {
  std::vector<uint32_t> words;  // [MaskWords(vocab_size)]
  int64_t num_allowed = 0;      // its bits
};

}  // namespace llmi
