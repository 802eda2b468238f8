// Blocks of the prefix cache between the engine and a folder: a thread that reads them, a thread that writes them, and the requests that
// wait for them.
//
// Blocks that were read become those of a sequence of their own, one by one between steps, as if they had been computed; so they enter the
// prefix cache, and the request that waited finds them there like any other beginning. Nothing else in the engine knows of them. A request
// waits for as long as computing these tokens would take, by the time of recent prompts, and not at all where reading looks slower.
//
// Where other engines compute prompts for this one, the request first waits, within the same time, until one of them was asked to write
// the blocks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/prefix_folder.h"
#include "engine/prefix_questions.h"
#include "engine/saved_prefix_options.h"
#include "engine/stats.h"
#include "scheduler/scheduler.h"

namespace llmi {

class SavedPrefixes {
 public:
  // wake: makes the engine thread call TakeReady soon; called on any thread.
  SavedPrefixes(KvCache& cache, const SavedPrefixOptions& options, PrefixQuestions& questions, std::function<void()> wake);
  ~SavedPrefixes();  // writes what is queued
  SavedPrefixes(const SavedPrefixes&) = delete;
  SavedPrefixes& operator=(const SavedPrefixes&) = delete;

  // --- The engine thread alone.
  // Prefetches the next blocks of this sequence, from the folder or from another engine. Returns whether the request waits for them.
  // seconds_per_token: of a prompt that is computed; 0: not known yet.
  bool Fetch(uint64_t request_id, const ScheduledSequence& sequence, double seconds_per_token);
  bool is_waiting() const;
  struct Ready {
    uint64_t request_id;
    bool may_find_more;  // it waited for the blocks of another request, which came: there may be more of its own
  };
  // Moves what was read into the cache. Returns the requests that wait no longer.
  std::vector<Ready> TakeReady();
  // Waits until TakeReady may have something to do, at most a tenth of a second.
  void WaitShortly();
  // Gives up the pages of one reading; false if there is none.
  bool GiveUpOne();
  // Writes the blocks of this beginning that the cache has, and returns their number of tokens when they are written.
  int64_t SaveNow(std::span<const int32_t> token_ids, const std::string& salt);
  // Writes all blocks of the cache that are not saved, the most recently used texts first, as far as the folder's size allows.
  void SaveAll();
  void Count(EngineStats* stats);

 private:
  struct Waiter {
    uint64_t request_id;
    double deadline_s;
    bool is_owner;
  };
  // Blocks that are read: one after another, of one text.
  struct Job {
    std::vector<int32_t> tokens;
    std::vector<PrefixKey> keys;
    std::vector<SavedHeader> wanted;
    double seconds_per_token;
    int64_t question = 0;  // its number; 0: nobody is asked
    bool is_handed_over = false;
    std::atomic<bool> cancelled = false;
    // The engine thread's.
    KvSequence kv;
    std::vector<Waiter> waiters;
    int64_t num_taken = 0;
    bool has_ended = false;
    bool is_answered = true;
    // Guarded by mutex_.
    std::deque<PrefixFolder::File> ready;
    bool is_read = false;  // no more will come
    bool is_whole = false;
  };
  struct WriteJob {
    PrefixKey key;
    SavedHeader header;
    std::vector<uint8_t> bytes;  // empty: the block was written before, and is used
  };
  void TakeAnswers();
  void Save(int32_t node, bool waits);
  void Use(int32_t node, double after_s);
  void Queue(WriteJob job);
  void WaitUntilWritten();
  void ReadMain();
  void ReadJob(Job& job);
  bool IsWorthReading(const Job& job, int64_t num_blocks);
  void WriteMain();
  void CountFault(SavedFault fault);
  void EndJob(Job& job);

  KvCache& cache_;
  PrefixFolder folder_;
  PrefixQuestions& questions_;
  const bool hands_over_;
  const int64_t ask_from_;
  const std::function<void()> wake_;
  const bool has_windows_;
  // The engine thread's.
  std::vector<std::shared_ptr<Job>> jobs_;
  std::vector<double> used_s_;  // by node: when its file was last told that it is used

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> unread_;
  std::deque<WriteJob> unwritten_;
  int64_t unwritten_bytes_ = 0;
  bool is_writing_ = false;
  bool closing_ = false;
  double seconds_per_block_ = 0;  // of recent reads; 0: none so far
  int64_t num_slow_ = 0;          // readings that looked slower than computing
  EngineStats counts_;            // of which only the counters of blocks are used
  std::thread reader_, writer_;
};

}  // namespace llmi
