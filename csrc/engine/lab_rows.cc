// What the lab computes of a model's parts: hidden states without a head, and the head without a forward.
#include <algorithm>
#include <utility>

#include "core/fp_env.h"
#include "engine/lab.h"
#include "engine/request_limits.h"
#include "engine/sizing.h"

namespace llmi {

std::vector<std::map<int, std::vector<float>>> Lab::HiddenRows(const std::vector<std::vector<int32_t>>& prompts,
                                                               const std::vector<std::optional<size_t>>& second_texts,
                                                               const std::vector<int>& layers, bool normed, const SparseView& view) {
  CheckArgument(second_texts.empty() || second_texts.size() == prompts.size(), "second_texts: one for each prompt, or none");
  std::vector<LabExtension> extensions;
  for (const std::vector<int32_t>& prompt : prompts) {
    auto sequence = std::make_shared<LabSequence>();
    sequence->capture.hidden_states = layers;
    sequence->kv.view = view;
    if (!second_texts.empty()) sequence->second_text = second_texts[extensions.size()];
    extensions.push_back({.sequence = sequence, .token_ids = prompt, .parents = {}, .wants_logits = false});
  }
  std::vector<LabResult> results(prompts.size());
  std::vector<std::map<int, std::vector<float>>> rows;
  commands_.Execute([&] {
    const auto free = [&] {
      for (const LabExtension& extension : extensions) Free(*extension.sequence);
    };
    try {
      ExtendNow(extensions, &results);
    } catch (...) {
      free();
      throw;
    }
    free();
    const int64_t hidden_size = decoder_.spec().hidden_size;
    for (LabResult& result : results) {
      for (auto& [layer, values] : result.hidden_states) {
        for (int64_t row = 0; normed && row < result.num_rows; row += limits_.max_num_batched_tokens) {
          decoder_.NormTapped(context_, values.data() + row * hidden_size, std::min(limits_.max_num_batched_tokens, result.num_rows - row));
        }
      }
      rows.push_back(std::move(result.hidden_states));
    }
  });
  return rows;
}

std::vector<float> Lab::Head(const HeadQuery& query) {
  CheckGenerates(decoder_.spec());
  const int64_t vocab_size = decoder_.spec().vocab_size;
  const int64_t hidden_size = decoder_.spec().hidden_size;
  const int64_t num_rows = static_cast<int64_t>(query.hidden.size()) / hidden_size;
  if (query.shortlist) CheckTokens(*query.shortlist, vocab_size);
  const auto width = query.shortlist ? query.shortlist->size() : static_cast<size_t>(vocab_size);
  std::vector<float> logits(static_cast<size_t>(num_rows) * width);
  const int64_t num_at_once = std::min(num_rows, LogitsRowsAtOnce(vocab_size, context_.device != nullptr));
  std::optional<Shortlist> tiles;
  std::vector<float> scattered;
  if (query.shortlist) {
    tiles.emplace(vocab_size, *query.shortlist);
    scattered.resize(static_cast<size_t>(num_at_once * vocab_size));
  }
  const auto work = [&] {
    const FloatEnvironmentGuard guard;  // a drafter may have changed it
    for (int64_t row = 0; row < num_rows; row += num_at_once) {
      commands_.CheckCaller();
      const int64_t count = std::min(num_at_once, num_rows - row);
      float* out = logits.data() + static_cast<size_t>(row) * width;
      decoder_.TapLogits(context_, query.hidden.data() + row * hidden_size, count, false, tiles ? scattered.data() : out,
                         tiles ? &*tiles : nullptr);
      for (int64_t r = 0; tiles && r < count; ++r) {
        for (size_t i = 0; i < width; ++i) {
          out[static_cast<size_t>(r) * width + i] = scattered[static_cast<size_t>(r * vocab_size + (*query.shortlist)[i])];
        }
      }
    }
  };
  if (query.in_drafter) {
    commands_.TryExecute(work);
  } else {
    commands_.Execute(work);
  }
  return logits;
}

}  // namespace llmi
