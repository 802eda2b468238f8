// From a token to the caller: the sample's record, its text, the rules that end it, and the events. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/running.h"

namespace llmi {

// Adds a token to the sample and its output. Returns why it ends here: a stop id, a stop string, a criterion of the user, the length; or
// nothing. raw [vocab_size]: logits for the user's criteria, empty if there are none. Adds the time in user code to *hook_seconds.
std::optional<FinishReason> TakeToken(Sample& sample, int32_t token, std::span<const float> raw, double* hook_seconds);

// Completes the output of a sample that ends for this reason.
void CompleteOutput(Sample& sample, FinishReason reason);

// Sends the news of each sample since the last call, for a request that streams.
void EmitNews(Running& running);

// Sends the finish event; the engine does not touch the request afterwards.
void EmitFinish(std::shared_ptr<Request> request, OutputChannel& channel);

}  // namespace llmi
