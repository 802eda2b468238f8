// The plan of a logits row: where it runs, what changes it, who decides on the next token, who else reads it, and what is kept of it.
// PlanRow makes the plan of each row before the step's logits exist. The classes of this folder and StepAhead read it, and none of them
// looks at a request's options to find out the same.
//
// The masks of a step's constrained rows are there before PlanRow, and so before the head: LogitsRow::mask, with the bits and their count.
// They belong to the first stage of the law (sampling/law.h), and are applied again after user code.
//
// To add a reader of rows:
// 1. Add a field to RowEdits, RowReaders or RowKeeps, or a value to RowDecider, and set it in PlanRow. Any reader, and anything kept, takes
//    the row to the host and leaves its raw logits as they are (RowPlan::NeedsHost). An edit does so if RowEdits::on_host names it, and a
//    decider unless PlanRow names it as one that devices know.
// 2. Serve it in RowProcessor (RowProcessor::Decide for a decider), or in UserProcessors for an edit.
// 3. Say in RowPlan::NeedsWholeRow whether it reads logits of tokens that masks ban.
// 4. State it in the table of tests/engine/test_row_plan.py, and in the readers of tests/engine/test_small_heads.py.
#pragma once

#include <vector>

namespace llmi {

struct LogitsRow;
struct Request;

enum class RowPlace { kHost, kDevice };

// Who names the token after the row.
enum class RowDecider {
  kNobody,    // no token follows: the row scores a prompt token, or serves nothing
  kDraw,      // drawn from the law
  kSampler,   // the user's sampler
  kRule,      // the acceptance rule, over the drafted tokens that follow the row
  kJudge,     // the judge of the whole draft
  kBeams,     // the beam search, from the rows of all its beams
  kContrast,  // contrastive search (engine/contrast): the row gives the candidates of the next step
};

// The changes of the row's logits.
struct RowEdits {
  bool constraint = false;        // the mask of a constraint: LogitsRow::mask
  bool combined = false;          // several rows make the row before the masks (rows/combined_rows.h)
  bool parameters = false;        // masks, biases, penalties, temperature or filters: the law is not the softmax of the raw logits
  bool last_token = false;        // some mask or penalty depends on the token before: edits can be listed only when that token is known
  bool batch_processors = false;  // the engine-wide processors, in one call for all such rows
  bool processors = false;        // the request's own processors, and the engine-wide ones unless batch_processors is set

  // User code changes the row.
  bool on_host() const;
};

// The readers of the whole row, in addition to the edits and the decider.
struct RowReaders {
  bool siblings = false;   // the request's other samples, which start here: each draws its first token from this row
  bool criteria = false;   // the user's stopping criteria read the raw logits
  bool user_rule = false;  // the user's acceptance rule decides at rows of the same draft

  bool operator==(const RowReaders&) const = default;
};

// What the row leaves behind besides the token.
struct RowKeeps {
  bool prompt_score = false;    // log-probabilities of the prompt token after the row
  bool logprobs = false;        // log-probabilities of the token and of the most likely ones: raw and of the law
  bool draft_logprobs = false;  // the law's log-probabilities of drafted tokens, for a drafter that observes
  bool trace = false;           // the decode trace: raw logits, each stage, the law
  bool likeliest = false;       // the likeliest tokens, for a drafter that learns from them
  bool hidden = false;          // the hidden state after the final norm, for contrastive search

  bool operator==(const RowKeeps&) const = default;
};

struct RowPlan {
  RowPlace place = RowPlace::kHost;
  RowDecider decider = RowDecider::kNobody;
  RowEdits edits;
  RowReaders readers;
  RowKeeps keeps;
  // If the row is drawn on the host: it depends on nothing else that this step draws, so PreparedRows may draw it in parallel with others.
  bool in_parallel = false;
  // The next step may be launched before this row's token is known: it depends on the token through the device's memory alone.
  bool lets_run_ahead = false;

  // Something on the host reads the row or changes it, beyond drawing from it. If not, the law may replace the logits.
  bool NeedsHost() const;
  // Something reads logits of tokens that the row's masks ban, or what user code may make of them: the row is computed whole, though few
  // tokens are allowed. This is the one place that names all such readers: row_heads.h asks it alone.
  bool NeedsWholeRow() const;
  // Not only the row's hidden state is wanted.
  bool NeedsLogits() const;
};

// What an engine has, as far as it matters to its rows.
struct RowSite {
  bool has_device = false;
  bool has_batch_processors = false;
};

// The arguments of a beam search for which its rows come to the host: a device knows the likeliest tokens of a row as it is, and no more.
// Readers and user code (RowPlan::NeedsHost) are not among them.
std::vector<const char*> WhyBeamsOnHost(const Request& request);

// The plan of a row of the step to come, by its other fields and its sample as they are before the step; a draft is known by then.
RowPlan PlanRow(const LogitsRow& row, const RowSite& site);

}  // namespace llmi
