// Takes a token to the caller: into the sample's record and text, past the rules that end a sample, and into events. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/running.h"

namespace llmi {

// The events of one step, by the channel they go to. A client is woken once for all of them.
class Outbox {
 public:
  void Add(const std::shared_ptr<OutputChannel>& channel, OutputEvent event);
  void Send();

 private:
  std::vector<std::pair<std::shared_ptr<OutputChannel>, std::vector<OutputEvent>>> events_;
};

// How a text ends.
struct TextEnd {
  FinishReason reason = FinishReason::kNone;
  std::variant<std::monostate, int32_t, std::string> stop_reason = {};
  bool at_token = false;  // by a stop id or an EOS token
};

// The end that the output's last token makes by itself, by its text or by a repetition, if it makes one. before: the output's tokens before
// it. detokenizer: has the text before it and takes it; null if no text is wanted.
std::optional<TextEnd> EndOfText(const SamplingParams& params, std::span<const int32_t> before, int32_t token, Detokenizer* detokenizer);

// The end that the user's criteria want. raw [vocab_size]: logits for them; empty if there are none. Adds the time in user code to
// *hook_seconds.
std::optional<TextEnd> EndByCriteria(RequestHooks* hooks, const HookContext& context, std::span<const float> raw, double* hook_seconds);

// Adds a token to the sample and its output. Returns the reason if the sample ends here (a stop id, a stop string, a criterion of the user,
// the length), else nothing. raw [vocab_size]: logits for the user's criteria; empty if there are none. Adds the time in user code to
// *hook_seconds.
std::optional<FinishReason> TakeToken(Sample& sample, int32_t token, std::span<const float> raw, double* hook_seconds);

// Completes the output of a sample that ends for this reason.
void CompleteOutput(Sample& sample, FinishReason reason);

// Adds the tokens and text that each sample has got since the last call to the outbox. For a request that streams.
void EmitNews(Running& running, Outbox* outbox);

// Adds each hypothesis of a beam search that has ended, whole and once. For a request that streams.
void EmitHypotheses(Running& running, Outbox* outbox);

// Adds the finish event; the engine does not touch the request afterwards.
void EmitFinish(std::shared_ptr<Request> request, const std::shared_ptr<OutputChannel>& channel, Outbox* outbox);

}  // namespace llmi
