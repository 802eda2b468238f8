#include "engine/saved_prefixes.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/errors.h"
#include "engine/clock.h"
#include "model/steering.h"

namespace llmi {
namespace {

constexpr size_t kMostReady = 16;  // blocks that were read and are not in the cache yet
constexpr int64_t kMostUnwrittenBytes = int64_t{64} << 20;
constexpr double kUseS = 60;           // a file is told that its block is used at most once in this time
constexpr double kFirstPatienceS = 5;  // before any prompt was computed
constexpr int64_t kRetry = 4;          // one of so many readings that look slow is made, to measure again

}  // namespace

SavedPrefixes::SavedPrefixes(KvCache& cache, const SavedPrefixOptions& options, PrefixQuestions& questions, std::function<void()> wake)
    : cache_(cache),
      folder_(options.directory, options.most_bytes, options.option()),
      questions_(questions),
      hands_over_(options.hands_over),
      ask_from_(options.ask_from),
      wake_(std::move(wake)),
      has_windows_(std::ranges::any_of(cache.groups().groups(), [](const KvGroup& group) { return group.window > 0; })) {
  cache_.SaveBlocks(options.identity, options.label, [this](int32_t node) { Save(node, false); });
  reader_ = std::thread([this] { ReadMain(); });
  writer_ = std::thread([this] { WriteMain(); });
}

SavedPrefixes::~SavedPrefixes() {
  for (const std::shared_ptr<Job>& job : jobs_) job->cancelled = true;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  reader_.join();
  writer_.join();
  for (const std::shared_ptr<Job>& job : jobs_) EndJob(*job);
}

bool SavedPrefixes::Fetch(uint64_t request_id, const ScheduledSequence& sequence, double seconds_per_token) {
  if (sequence.token_ids == nullptr || sequence.kv.num_tokens > 0) return false;
  const int64_t block_size = cache_.groups().block_size();
  const std::span<const int32_t> tokens(*sequence.token_ids);
  const int64_t num_blocks = MostCached(sequence) / block_size;
  const int64_t num_known = cache_.MatchPrefix(tokens, num_blocks * block_size, sequence.cache_salt, sequence.kv.view) / block_size;
  if (num_known >= num_blocks) return false;
  // What steering changed nobody else computes.
  const bool asks = ask_from_ > 0 && (sequence.cache_salt.empty() || sequence.cache_salt.front() == kUnsteered);
  auto job = std::make_shared<Job>();
  int64_t num_there = 0;
  const PrefixKey root = RootKey(cache_.identity(), sequence.cache_salt);
  PrefixKey parent = root;
  for (int64_t block = 0; block < num_blocks; ++block) {
    SavedHeader wanted = cache_.ExpectedHeader(tokens, block, root, parent);
    parent = ChildKey(parent, wanted.tokens);
    if (block < num_known) continue;
    if ((block == num_known || asks) && num_there == block - num_known && folder_.Has(parent)) ++num_there;
    if (num_there == 0 && !asks) return false;
    job->keys.push_back(parent);
    job->wanted.push_back(std::move(wanted));
  }
  const bool is_asked = asks && (num_blocks - num_known - num_there) * block_size >= ask_from_;
  if (num_there == 0 && !is_asked) return false;
  const auto num_tokens = static_cast<double>((num_blocks - num_known) * block_size);
  const double patience = seconds_per_token > 0 ? num_tokens * seconds_per_token : kFirstPatienceS;
  const double deadline = NowSeconds() + patience;
  for (const std::shared_ptr<Job>& other : jobs_) {
    if (other->has_ended || other->keys[0] != job->keys[0]) continue;
    other->waiters.push_back({request_id, deadline, false});
    return true;
  }
  job->tokens = *sequence.token_ids;
  job->seconds_per_token = seconds_per_token;
  job->waiters.push_back({request_id, deadline, true});
  cache_.Init(&job->kv);
  cache_.AttachPrefix(&job->kv, job->tokens, num_known * block_size, sequence.cache_salt);
  if (job->kv.num_tokens != num_known * block_size) {
    cache_.Free(&job->kv);
    return false;
  }
  folder_.Pin(job->keys);
  jobs_.push_back(job);
  if (is_asked) {
    job->is_answered = false;
    const auto asked = tokens.first(static_cast<size_t>(num_blocks * block_size));
    const std::string salt = sequence.cache_salt.empty() ? "" : sequence.cache_salt.substr(1);
    job->question = questions_.Ask({.tokens = {asked.begin(), asked.end()}, .salt = salt, .seconds = patience});
    return true;
  }
  {
    const std::lock_guard lock(mutex_);
    unread_.push_back(std::move(job));
  }
  changed_.notify_all();
  return true;
}

bool SavedPrefixes::is_waiting() const {
  return std::ranges::any_of(jobs_, [](const std::shared_ptr<Job>& job) { return !job->waiters.empty(); });
}

void SavedPrefixes::WaitShortly() {
  std::unique_lock lock(mutex_);
  const auto has_news = [&] {
    return std::ranges::any_of(jobs_, [](const std::shared_ptr<Job>& job) { return !job->ready.empty() || job->is_read; });
  };
  changed_.wait_for(lock, std::chrono::milliseconds(100), has_news);
}

// Others have written the blocks of some prompts, or have not: what is in the folder is read.
void SavedPrefixes::TakeAnswers() {
  for (const auto& [number, answer] : questions_.TakeAnswers()) {
    const auto job = std::ranges::find(jobs_, number, [](const std::shared_ptr<Job>& each) { return each->question; });
    const std::lock_guard lock(mutex_);
    counts_.num_asked_prefills += answer != PrefixAnswer::kUnasked;
    counts_.num_failed_prefills += answer == PrefixAnswer::kFailed;
    counts_.num_foreign_prefills += answer == PrefixAnswer::kForeign;
    if (job == jobs_.end()) continue;
    counts_.num_late_prefills += answer == PrefixAnswer::kLate && !(*job)->waiters.empty();
    (*job)->is_answered = true;
    (*job)->is_handed_over = answer == PrefixAnswer::kThere;
    unread_.push_back(*job);
    changed_.notify_all();
  }
}

std::vector<SavedPrefixes::Ready> SavedPrefixes::TakeReady() {
  TakeAnswers();
  std::vector<Ready> result;
  for (const std::shared_ptr<Job>& job : jobs_) {
    std::deque<PrefixFolder::File> ready;
    bool is_read = false;
    {
      const std::lock_guard lock(mutex_);
      ready.swap(job->ready);
      is_read = job->is_read;
    }
    changed_.notify_all();
    for (const PrefixFolder::File& file : ready) {
      if (job->has_ended) break;
      if (!cache_.AppendSaved(&job->kv, file.block, job->tokens)) {
        job->cancelled = true;
        EndJob(*job);
        break;
      }
      ++job->num_taken;
    }
    if (is_read) EndJob(*job);
    const bool is_whole = is_read && job->is_whole && job->num_taken == static_cast<int64_t>(job->keys.size());
    const double now = NowSeconds();
    std::erase_if(job->waiters, [&](const Waiter& waiter) {
      const bool is_late = !job->has_ended && now > waiter.deadline_s;
      if (is_late) {
        const std::lock_guard lock(mutex_);
        counts_.num_late_blocks += static_cast<int64_t>(job->keys.size()) - job->num_taken;
        counts_.num_late_prefills += !job->is_answered;
      }
      if (!is_late && !job->has_ended) return false;
      result.push_back({waiter.request_id, is_whole && !waiter.is_owner});
      return true;
    });
  }
  std::erase_if(jobs_, [&](const std::shared_ptr<Job>& job) { return job->has_ended; });
  return result;
}

// Its blocks stay in the cache, as those of an ended request do. The reader may still have the job.
void SavedPrefixes::EndJob(Job& job) {
  if (job.has_ended) return;
  job.has_ended = true;
  cache_.Free(&job.kv);
  folder_.Unpin(job.keys);
}

bool SavedPrefixes::GiveUpOne() {
  for (const std::shared_ptr<Job>& job : jobs_) {
    if (job->has_ended || job->kv.num_tokens == 0) continue;
    job->cancelled = true;
    EndJob(*job);
    wake_();  // for those who wait for it
    return true;
  }
  return false;
}

// A block that was saved is used, of which its file is told unless it was in the last after_s seconds.
void SavedPrefixes::Use(int32_t node, double after_s) {
  if (used_s_.size() <= static_cast<size_t>(node)) used_s_.resize(static_cast<size_t>(node) + 1, -kUseS);
  double& used = used_s_[static_cast<size_t>(node)];
  const double now = NowSeconds();
  if (now - used < after_s) return;
  used = now;
  Queue({cache_.prefix_tree()->key(node), cache_.HeaderOf(node), {}});
}

void SavedPrefixes::Save(int32_t node, bool waits) {
  PrefixTree& tree = *cache_.mutable_prefix_tree();
  if (tree.is_saved(node)) return Use(node, kUseS);
  if (hands_over_ && !waits) return;
  if (!has_windows_ && folder_.Has(tree.key(node))) {
    tree.SetSaved(node);
    return Use(node, 0);
  }
  const SavedHeader header = cache_.HeaderOf(node);
  if (std::ranges::none_of(header.present, [](uint8_t present) { return present != 0; })) return;
  {
    std::unique_lock lock(mutex_);
    if (waits) changed_.wait(lock, [&] { return unwritten_bytes_ < kMostUnwrittenBytes; });
    if (unwritten_bytes_ >= kMostUnwrittenBytes) {
      ++counts_.num_unsaved_blocks;
      return;
    }
  }
  WriteJob job = {tree.key(node), header, cache_.BytesOf(header, node)};
  tree.SetSaved(node);
  Queue(std::move(job));
}

void SavedPrefixes::Queue(WriteJob job) {
  {
    const std::lock_guard lock(mutex_);
    unwritten_bytes_ += static_cast<int64_t>(job.bytes.size());
    unwritten_.push_back(std::move(job));
  }
  changed_.notify_all();
}

int64_t SavedPrefixes::SaveNow(std::span<const int32_t> token_ids, const std::string& salt) {
  PrefixTree& tree = *cache_.mutable_prefix_tree();
  const std::vector<int32_t> path = cache_.KnownPath(token_ids, salt);
  for (size_t i = 1; i < path.size(); ++i) {
    if (tree.is_saved(path[i]) && folder_.Has(tree.key(path[i]))) {
      Use(path[i], 0);
    } else {
      tree.SetSaved(path[i], false);
      Save(path[i], true);
    }
  }
  WaitUntilWritten();
  int64_t num_blocks = 0;
  for (size_t i = 1; i < path.size() && folder_.Has(tree.key(path[i])); ++i) ++num_blocks;
  return num_blocks * cache_.groups().block_size();
}

void SavedPrefixes::SaveAll() {
  if (hands_over_) return;
  const PrefixTree& tree = *cache_.prefix_tree();
  const int64_t block_bytes = cache_.groups().page_bytes() * cache_.groups().pages_per_block();
  int64_t num_left = folder_.most_bytes() / std::max<int64_t>(1, block_bytes);
  for (const int32_t newest : tree.NewestFirst()) {
    std::vector<int32_t> path;  // a block is of no use without those before it
    for (int32_t node = newest; !tree.is_root(node); node = tree.Parent(node)) {
      if (!tree.is_saved(node)) path.push_back(node);
    }
    num_left -= static_cast<int64_t>(path.size());
    if (num_left < 0) break;
    for (auto node = path.rbegin(); node != path.rend(); ++node) Save(*node, true);
  }
  WaitUntilWritten();
}

void SavedPrefixes::WaitUntilWritten() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return unwritten_.empty() && !is_writing_; });
}

void SavedPrefixes::CountFault(SavedFault fault) {
  switch (fault) {
    case SavedFault::kNone: ++counts_.num_fetched_blocks; break;
    case SavedFault::kMissing: ++counts_.num_missing_blocks; break;
    case SavedFault::kCut: ++counts_.num_cut_blocks; break;
    case SavedFault::kDamaged: ++counts_.num_damaged_blocks; break;
    case SavedFault::kExchanged: ++counts_.num_exchanged_blocks; break;
  }
}

// By the time of recent reads and prompts.
bool SavedPrefixes::IsWorthReading(const Job& job, int64_t num_blocks) {
  const std::lock_guard lock(mutex_);
  const double computing = job.seconds_per_token * static_cast<double>(cache_.groups().block_size() * num_blocks);
  const double reading = seconds_per_block_ * static_cast<double>(num_blocks);
  if (computing == 0 || reading <= computing || ++num_slow_ % kRetry == 0) return true;
  ++counts_.num_fetches_left_out;
  return false;
}

void SavedPrefixes::ReadJob(Job& job) {
  int64_t num_blocks = 0;
  const auto num_keys = static_cast<int64_t>(job.keys.size());
  const auto has = [&](int64_t block) { return block < num_keys && folder_.Has(job.keys[static_cast<size_t>(block)]); };
  while (has(num_blocks)) ++num_blocks;
  if (has(num_blocks + 1)) {  // one was removed, and not those behind it
    const std::lock_guard lock(mutex_);
    CountFault(SavedFault::kMissing);
  }
  if (job.is_handed_over && num_blocks < num_keys) {
    const std::lock_guard lock(mutex_);
    ++counts_.num_short_prefills;
  }
  if (!IsWorthReading(job, num_blocks)) return;
  for (int64_t block = 0; block < num_blocks && !job.cancelled; ++block) {
    const double start = NowSeconds();
    PrefixFolder::File file = folder_.Read(job.keys[static_cast<size_t>(block)], job.wanted[static_cast<size_t>(block)]);
    const double seconds = NowSeconds() - start;
    std::unique_lock lock(mutex_);
    seconds_per_block_ = seconds_per_block_ == 0 ? seconds : 0.9 * seconds_per_block_ + 0.1 * seconds;
    CountFault(file.fault);
    if (file.fault != SavedFault::kNone) return;
    changed_.wait(lock, [&] { return job.ready.size() < kMostReady || job.cancelled || closing_; });
    job.ready.push_back(std::move(file));
    lock.unlock();
    changed_.notify_all();
    wake_();
  }
  job.is_whole = num_blocks == num_keys;
}

void SavedPrefixes::ReadMain() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !unread_.empty(); });
    if (closing_) return;
    const std::shared_ptr<Job> job = std::move(unread_.front());
    unread_.pop_front();
    lock.unlock();
    if (!job->cancelled) ReadJob(*job);
    lock.lock();
    job->is_read = true;
    lock.unlock();
    changed_.notify_all();
    wake_();
    lock.lock();
  }
}

void SavedPrefixes::WriteMain() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !unwritten_.empty(); });
    if (unwritten_.empty()) return;
    const WriteJob job = std::move(unwritten_.front());
    unwritten_.pop_front();
    is_writing_ = true;
    lock.unlock();
    std::string problem;
    if (job.bytes.empty()) {
      folder_.Use(job.key, job.header.index);
    } else {
      problem = folder_.Write(job.key, job.header, job.bytes);
    }
    lock.lock();
    is_writing_ = false;
    if (counts_.saved_blocks_problem.empty()) counts_.saved_blocks_problem = problem;
    unwritten_bytes_ -= static_cast<int64_t>(job.bytes.size());
    if (!job.bytes.empty()) problem.empty() ? ++counts_.num_saved_blocks : ++counts_.num_unsaved_blocks;
    changed_.notify_all();
  }
}

void SavedPrefixes::Count(EngineStats* stats) {
  const std::lock_guard lock(mutex_);
  stats->num_saved_blocks = counts_.num_saved_blocks;
  stats->num_unsaved_blocks = counts_.num_unsaved_blocks;
  stats->num_fetched_blocks = counts_.num_fetched_blocks;
  stats->num_fetches_left_out = counts_.num_fetches_left_out;
  stats->num_missing_blocks = counts_.num_missing_blocks;
  stats->num_cut_blocks = counts_.num_cut_blocks;
  stats->num_damaged_blocks = counts_.num_damaged_blocks;
  stats->num_exchanged_blocks = counts_.num_exchanged_blocks;
  stats->num_late_blocks = counts_.num_late_blocks;
  stats->num_asked_prefills = counts_.num_asked_prefills;
  stats->num_late_prefills = counts_.num_late_prefills;
  stats->num_failed_prefills = counts_.num_failed_prefills;
  stats->num_foreign_prefills = counts_.num_foreign_prefills;
  stats->num_short_prefills = counts_.num_short_prefills;
  stats->saved_blocks_problem = counts_.saved_blocks_problem;
}

}  // namespace llmi
