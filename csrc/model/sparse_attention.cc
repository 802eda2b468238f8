#include "model/sparse_attention.h"

#include <string>

#include "core/errors.h"
#include "kernels/ops/attention.h"

namespace llmi {
namespace {

[[noreturn]] void Refuse(const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, "sparse_attention: " + why, "sparse_attention");
}

}  // namespace

void CheckView(const SparseView& view, const ModelSpec& spec, bool on_device, bool on_ranks) {
  static_assert(kMostSinks == kAttentionSpan);
  if (view == SparseView{}) return;
  constexpr int64_t kMost = int64_t{1} << 30;
  if (view.picks()) {
    const auto is_whole = [](int64_t count, int64_t least) { return count >= least && count <= kMost && count % kSlotsPerTile == 0; };
    if (!is_whole(view.sinks, 0) || !is_whole(view.recent, kSlotsPerTile) || view.num_best > kMost / kSlotsPerTile) {
      Refuse("sinks and recent must be multiples of 16, and recent 16 or more");
    }
  } else if (view.sinks < 0 || view.sinks > kMostSinks)
    Refuse("sinks = " + std::to_string(view.sinks) + " is outside [0, 256]");
  if (view.recent < 1 || view.recent > kMost) Refuse("window = " + std::to_string(view.recent) + " is outside [1, 2^30]");
  if (on_device) Refuse("devices compute full attention alone: give device=\"cpu\", or leave it out");
  if (on_ranks) Refuse("the ranks of tensor_parallel_size compute full attention alone: give tensor_parallel_size=1, or leave it out");
  if (spec.two_sided) Refuse("the rows of this " + spec.family + " encoder also see those behind them: leave it out");
  if (spec.has_states()) Refuse("this " + spec.family + " model has layers whose state holds all tokens: leave it out");
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    if (attention.has_latent()) Refuse("this " + spec.family + " model has latent attention: leave it out");
    if (attention.window > 0) Refuse("this " + spec.family + " model has sliding windows of its own: leave it out");
    if (view.picks() && !attention.linear_biases.empty()) {
      Refuse("this " + spec.family +
             " model has linear biases, which bounds of keys leave out: give the method 'streaming', or leave it out");
    }
    if (!attention.sinks.name.empty()) Refuse("this " + spec.family + " model has sinks of its own: leave it out");
  }
}

}  // namespace llmi
