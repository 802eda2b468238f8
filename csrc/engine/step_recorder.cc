#include "engine/step_recorder.h"

#include <algorithm>
#include <charconv>

#include "core/errors.h"
#include "engine/clock.h"

namespace llmi {
namespace {

std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

template <typename... Values>
std::string Joined(Values... values) {
  std::string text;
  ((text += (text.empty() ? "" : ",") + Text(static_cast<int64_t>(values))), ...);
  return text;
}

template <typename Items>
std::string List(const Items& items) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ',';
    text += Text(item);
  }
  text += ']';
  return text;
}

// Bytes as a JSON string of hexadecimal digits.
std::string Hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "\"";
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text + "\"";
}

}  // namespace

StepRecorder::StepRecorder(const std::string& path, const std::string& header, const KvCache& cache)
    : path_(path), cache_(cache), file_(path), begin_s_(NowSeconds()) {
  if (!file_) throw Error(ErrorKind::kInvalidArgument, "record_steps: " + path + " cannot be written", "record_steps");
  file_ << header << '\n';
}

void StepRecorder::Close() {
  if (!events_.empty()) WriteLine("\"end_s\":" + Text(NowSeconds() - begin_s_));
  file_.close();
  if (!file_) throw Error(ErrorKind::kInvalidArgument, "record_steps: " + path_ + " could not be written to its end", "record_steps");
}

StepRecorder::Written& StepRecorder::WrittenOf(const KvSequence& kv) {
  return written_.try_emplace(&kv, Written{static_cast<int64_t>(written_.size()), {}, {}, {}}).first->second;
}

void StepRecorder::Note(const char* name, const std::string& values) {
  if (!events_.empty()) events_ += ',';
  events_ += std::string("[\"") + name + "\"" + (values.empty() ? "" : "," + values) + "]";
}

void StepRecorder::WriteLine(const std::string& fields) {
  file_ << '{' << fields << ",\"events\":[" << events_ << "]}\n";
  events_.clear();
}

void StepRecorder::OnInit(const KvSequence& kv) { Note("init", Joined(IdOf(kv))); }
void StepRecorder::OnFork(const KvSequence& parent, const KvSequence& child) { Note("fork", Joined(IdOf(parent), IdOf(child))); }
void StepRecorder::OnFree(const KvSequence& kv) { Note("free", Joined(IdOf(kv))); }
void StepRecorder::OnReserve(const KvSequence& kv, int64_t num_new, bool cache_only, int64_t num_drafted, bool reserved) {
  Note("reserve", Joined(IdOf(kv), num_new, cache_only, num_drafted, reserved));
}
void StepRecorder::OnCommit(const KvSequence& kv, int64_t num_new, std::span<const int32_t> token_ids) {
  if (!token_ids.empty()) SyncTokens(WrittenOf(kv), token_ids);
  Note("keep", Joined(IdOf(kv), num_new, !token_ids.empty()));
}
void StepRecorder::OnRollback(const KvSequence& kv, int64_t num_tokens) { Note("rollback", Joined(IdOf(kv), num_tokens)); }
void StepRecorder::OnTrim(const KvSequence& kv) { Note("trim", Joined(IdOf(kv))); }
void StepRecorder::OnClear() { Note("clear", ""); }
void StepRecorder::OnOther() { Note("other", ""); }

bool StepRecorder::Sync(const ScheduledSequence& sequence, bool is_new) {
  Written& written = WrittenOf(sequence.kv);
  std::vector<int64_t> fields;
  std::string changed;
  VisitRecorded(sequence, [&](const char* name, const auto& field) {
    const size_t place = fields.size();
    fields.push_back(static_cast<int64_t>(field));
    if (place == 0) is_new = is_new || written.fields.empty() || written.fields[0] != fields[0];
    if (!is_new && written.fields[place] == fields[place]) return;
    changed += std::string(changed.empty() ? "" : ",") + "\"" + name + "\":" + Text(fields[place]);
  });
  if (is_new) {
    written = {written.id, {}, {}, {}};
    Note("new", Joined(written.id) + "," + Hex(sequence.cache_salt));
  }
  if (!changed.empty()) Note("set", Joined(written.id) + ",{" + changed + "}");
  written.fields = std::move(fields);
  if (sequence.token_ids != nullptr) SyncTokens(written, *sequence.token_ids);
  if (sequence.key != written.key) {
    Note("key", Joined(written.id) + "," + List(sequence.key));
    written.key = sequence.key;
  }
  if (sequence.companion == nullptr) return is_new;
  const int64_t id = written.id;
  Sync(*sequence.companion, is_new);
  if (is_new) Note("pair", Joined(id, IdOf(sequence.companion->kv)));
  return is_new;
}

void StepRecorder::SyncTokens(Written& written, std::span<const int32_t> tokens) {
  const auto differ = std::mismatch(tokens.begin(), tokens.end(), written.tokens.begin(), written.tokens.end()).first;
  const std::vector<int64_t> behind(differ, tokens.end());
  if (behind.empty() && tokens.size() == written.tokens.size()) return;
  Note("tokens", Joined(written.id, differ - tokens.begin()) + "," + List(behind));
  written.tokens.assign(tokens.begin(), tokens.end());
}

void StepRecorder::OnAdd(const ScheduledSequence& sequence, bool is_running) {
  const bool arrives = Sync(sequence) && !is_running;
  Note(is_running ? "run" : "add", Joined(IdOf(sequence.kv)));
  if (!arrives) return;
  WriteLine("\"arrival\":" + Joined(IdOf(sequence.kv)) + ",\"time_s\":" + Text(NowSeconds() - begin_s_) +
            ",\"input_tokens\":" + Joined(sequence.num_tokens));
}

void StepRecorder::OnRemove(const ScheduledSequence& sequence) {
  Sync(sequence);
  Note("remove", Joined(IdOf(sequence.kv)));
}

void StepRecorder::OnSchedule(const Scheduler& scheduler, int64_t prompt_budget) {
  step_begin_s_ = NowSeconds();
  for (const ScheduledSequence* sequence : scheduler.running()) Sync(*sequence);
  for (const ScheduledSequence* sequence : scheduler.waiting()) Sync(*sequence);
  Note("prompts", Joined(prompt_budget));
}

void StepRecorder::NotePieces(const char* name, const std::vector<ScheduledPiece>& pieces, const std::string& behind) {
  std::string text;
  for (const ScheduledPiece& piece : pieces) {
    text += std::string(text.empty() ? "[" : ",[") +
            Joined(IdOf(piece.sequence->kv), piece.num_new, piece.num_drafted, piece.num_companion) + "]";
  }
  Note(name, "[" + text + "]" + behind);
}

void StepRecorder::OnScheduled(const std::vector<ScheduledPiece>& pieces) {
  num_rows_ = 0;
  for (const ScheduledPiece& piece : pieces) num_rows_ += piece.num_rows();
  NotePieces("schedule", pieces, "," + Joined(cache_.num_available()));
}

void StepRecorder::OnCommit(const std::vector<ScheduledPiece>& pieces) { NotePieces("commit", pieces, ""); }

void StepRecorder::OnEndStep(const Scheduler& scheduler) {
  for (const ScheduledSequence* sequence : scheduler.running()) Sync(*sequence);  // rows of a static batch that have ended
  Note("end", "");
  WriteLine("\"step\":" + Joined(num_steps_++) + ",\"start_s\":" + Text(step_begin_s_ - begin_s_) +
            ",\"seconds\":" + Text(NowSeconds() - step_begin_s_) + ",\"rows\":" + Joined(num_rows_));
}

}  // namespace llmi
