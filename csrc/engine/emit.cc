#include "engine/emit.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "engine/beams/group.h"
#include "engine/clock.h"

namespace llmi {
namespace {

bool Holds(const std::vector<int32_t>& ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// Whether the output ends with one pattern of tokens, repeated as often as repetition_detection says. The work is linear in the tokens that
// it looks at.
bool Repeats(const SamplingParams& params, std::span<const int32_t> before, int32_t token) {
  if (params.repetition_max_size == 0) return false;
  const int64_t count = params.repetition_min_count;
  const int64_t length = std::min(static_cast<int64_t>(before.size()) + 1, params.repetition_max_size * count);
  const auto at = [&](int64_t i) { return i == 0 ? token : before[before.size() - static_cast<size_t>(i)]; };  // from the end
  // common[i]: how many of the last tokens are those that end i tokens earlier (the Z function of the reversed output).
  std::vector<int64_t> common(static_cast<size_t>(length), 0);
  int64_t begin = 0;
  int64_t end = 0;
  for (int64_t i = 1; i < length; ++i) {
    int64_t same = i < end ? std::min(end - i, common[static_cast<size_t>(i - begin)]) : 0;
    while (i + same < length && at(same) == at(i + same)) ++same;
    if (i + same > end) {
      begin = i;
      end = i + same;
    }
    common[static_cast<size_t>(i)] = same;
    if (i > params.repetition_max_size) break;
    if (i >= params.repetition_min_size && same >= i * (count - 1)) return true;
  }
  return false;
}

// Whether the output's last token is another one than the record's, or behind its end.
bool Differs(const Sample& sample) {
  const std::vector<std::vector<int32_t>>& recorded = sample.request().recorded;
  if (!sample.request().checks_recorded) return false;
  const std::vector<int32_t>& wanted = recorded[static_cast<size_t>(sample.index)];
  const std::vector<int32_t>& tokens = sample.output().token_ids;
  return tokens.size() > wanted.size() || tokens.back() != wanted[tokens.size() - 1];
}

// What a reader wants to know before the request ends. Call it before the sample counts its tokens as streamed.
void AddRecord(const Running& running, const Sample& sample, OutputEvent* event) {
  const Request& request = *running.request;
  const Sample& leader = *running.samples[0];
  event->num_cached_tokens = request.num_cached_tokens + (leader.finished ? 0 : leader.scheduled.num_cached);
  event->first_scheduled_time_s = request.first_scheduled_time_s;
  event->first_token_time_s = request.first_token_time_s;
  const SpeculationStats& speculation = sample.output().speculation;
  event->num_draft_tokens = speculation.num_draft_tokens;
  event->num_accepted_tokens = speculation.num_accepted_tokens;
  if (sample.index == 0 && sample.streamed.num_tokens == 0) event->prompt_logprobs = request.prompt_logprobs;
}

}  // namespace

void OutputChannel::Push(std::vector<OutputEvent> events) {
  {
    const std::lock_guard lock(mutex_);
    std::move(events.begin(), events.end(), std::back_inserter(events_));
  }
  ready_.notify_all();
}

void OutputChannel::Wait(double timeout_s) {
  std::unique_lock lock(mutex_);
  ready_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] { return !events_.empty(); });
}

std::vector<OutputEvent> OutputChannel::TakeAll() {
  const std::lock_guard lock(mutex_);
  std::vector<OutputEvent> events(std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
  return events;
}

void Outbox::Add(const std::shared_ptr<OutputChannel>& channel, OutputEvent event) {
  // The calls of a program have a channel each, and all requests of an AsyncLLM share one: the list is short.
  auto found = std::find_if(events_.begin(), events_.end(), [&](const auto& entry) { return entry.first == channel; });
  if (found == events_.end()) found = events_.insert(found, {channel, {}});
  found->second.push_back(std::move(event));
}

void Outbox::Send() {
  for (auto& [channel, events] : std::exchange(events_, {})) channel->Push(std::move(events));
}

std::optional<TextEnd> EndOfText(const SamplingParams& params, std::span<const int32_t> before, int32_t token, Detokenizer* detokenizer) {
  const int64_t num_output = static_cast<int64_t>(before.size()) + 1;
  const bool is_eos = !params.ignore_eos && Holds(params.eos_token_ids, token);
  const bool is_stop_id = Holds(params.stop_token_ids, token);
  if (num_output >= params.min_tokens && (is_eos || is_stop_id)) {
    if (detokenizer != nullptr && params.include_stop_str_in_output) detokenizer->Push(token, false);
    TextEnd end = {FinishReason::kStop, {}, true};
    if (is_stop_id) end.stop_reason = token;
    return end;
  }
  if (detokenizer != nullptr) {
    detokenizer->Push(token, num_output >= params.min_tokens);
    if (detokenizer->stopped_by()) return TextEnd{FinishReason::kStop, *detokenizer->stopped_by()};
  }
  if (num_output >= params.min_tokens && Repeats(params, before, token)) return TextEnd{FinishReason::kStop, "repetition_detected"};
  return std::nullopt;
}

std::optional<TextEnd> EndByCriteria(RequestHooks* hooks, const HookContext& context, std::span<const float> raw, double* hook_seconds) {
  if (raw.empty()) return std::nullopt;
  const Stopwatch stopwatch(hook_seconds);
  const std::optional<std::string> reason = hooks->ShouldStop(context, raw.data(), static_cast<int64_t>(raw.size()));
  if (!reason) return std::nullopt;
  TextEnd end = {FinishReason::kStop};
  if (!reason->empty()) end.stop_reason = *reason;
  return end;
}

std::optional<FinishReason> TakeToken(Sample& sample, int32_t token, std::span<const float> raw, double* hook_seconds) {
  Request& request = *sample.running->request;
  const SamplingParams& params = request.params;
  SampleOutput& output = sample.output();
  const double now = sample.emit_time_s;
  if (request.first_token_time_s == 0) request.first_token_time_s = now;
  sample.Append(token);
  output.token_ids.push_back(token);
  output.token_times_s.push_back(now);
  const auto num_output = static_cast<int64_t>(output.token_ids.size());
  const auto before = std::span<const int32_t>(output.token_ids).first(output.token_ids.size() - 1);
  std::optional<TextEnd> end;
  if (params.detokenize) {
    const Stopwatch stopwatch(&request.detokenize_time_s);
    end = EndOfText(params, before, token, &sample.detokenizer);
  } else {
    end = EndOfText(params, before, token, nullptr);
  }
  // The criteria see the last token too, whatever ends the text: streamers are among them.
  const std::optional<TextEnd> wanted = EndByCriteria(request.hooks.get(), sample.hook_context(), raw, hook_seconds);
  if (!end) end = wanted;
  if (end) {
    output.stop_reason = end->stop_reason;
    return end->reason;
  }
  if (num_output >= params.max_tokens) return FinishReason::kLength;
  if (Differs(sample)) return FinishReason::kAbort;
  return std::nullopt;
}

void CompleteOutput(Sample& sample, FinishReason reason) {
  SampleOutput& output = sample.output();
  Request& request = *sample.running->request;
  sample.detokenizer.Finish();
  output.text = sample.detokenizer.text();
  output.finish_reason = reason;
  request.num_preemptions += sample.scheduled.num_preemptions;
  if (sample.index == 0) request.num_cached_tokens += sample.scheduled.num_cached;
}

void EmitNews(Running& running, Outbox* outbox) {
  for (const auto& sample : running.samples) {
    const SampleOutput& output = running.output(*sample);
    const bool news = output.token_ids.size() > sample->streamed.num_tokens || (sample->finished && !sample->streamed.finish);
    if (!news) continue;
    const auto first_new = static_cast<int64_t>(sample->streamed.num_tokens);
    OutputEvent event;
    event.request = running.request;
    event.sample_index = sample->index;
    event.token_ids.assign(output.token_ids.begin() + first_new, output.token_ids.end());
    if (!output.logprobs.empty()) event.logprobs.assign(output.logprobs.begin() + first_new, output.logprobs.end());
    event.text = sample->detokenizer.TakeEmittable();
    event.finish_reason = output.finish_reason;
    event.stop_reason = output.stop_reason;
    AddRecord(running, *sample, &event);
    sample->streamed.num_tokens = output.token_ids.size();
    sample->streamed.finish = sample->finished;
    outbox->Add(running.channel, std::move(event));
  }
}

void EmitHypotheses(Running& running, Outbox* outbox) {
  const bool ended = running.num_finished == static_cast<int64_t>(running.samples.size());
  if (!ended || running.beams->streamed) return;
  running.beams->streamed = true;
  int64_t index = 0;
  for (const SampleOutput& output : running.request->samples) {
    OutputEvent event;
    event.request = running.request;
    event.sample_index = index++;
    event.token_ids = output.token_ids;
    event.logprobs = output.logprobs;
    event.text = output.text;
    event.finish_reason = output.finish_reason;
    outbox->Add(running.channel, std::move(event));
  }
}

void EmitFinish(std::shared_ptr<Request> request, const std::shared_ptr<OutputChannel>& channel, Outbox* outbox) {
  OutputEvent event;
  event.request = std::move(request);
  event.finished = true;
  outbox->Add(channel, std::move(event));
}

}  // namespace llmi
