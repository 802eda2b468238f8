#include "model/work.h"

#include <algorithm>
#include <initializer_list>

#include "kernels/ops/linear.h"

namespace llmi {

WorkCounter::WorkCounter(const ModelWeights& weights, const ModelSpec& spec) {
  for (int i = 0; i < spec.num_layers(); ++i) {
    const AttentionSpec& layer = spec.layers[static_cast<size_t>(i)].attention;
    if (!spec.layers[static_cast<size_t>(i)].has_attention()) continue;
    auto found = std::ranges::find(attention_, layer.window, &Attention::window);
    if (found == attention_.end()) found = attention_.insert(found, {layer.window, 0, {}});
    found->width += static_cast<double>(layer.num_heads * layer.head_dim);
    found->layers.push_back(i);
  }
  const auto add = [&](const LinearWeights& linear) {
    const PackedView view = linear.matrix.view();
    row_operations_ += 2.0 * static_cast<double>(view.num_rows) * static_cast<double>(view.num_cols);
    layer_bytes_ += static_cast<double>(linear.matrix.num_bytes());
  };
  add(weights.layer_projection);
  for (const LayerWeights& layer : weights.layers) {
    layer.VisitLinears(add);
    Expert expert;
    const double num_experts = std::max<double>(1.0, static_cast<double>(layer.router.matrix.view().num_rows));
    layer.VisitExperts([&](const LinearWeights& linear) {
      const PackedView view = linear.matrix.view();
      expert.operations += 2.0 * static_cast<double>(view.num_rows) * static_cast<double>(view.num_cols) / num_experts;
      expert.bytes += static_cast<double>(linear.matrix.num_bytes()) / num_experts;
    });
    experts_.push_back(expert);
  }
}

void WorkCounter::AddExperts(int64_t layer, int64_t num_read, int64_t num_pairs) {
  const Expert& expert = experts_[static_cast<size_t>(layer)];
  done_.operations += expert.operations * static_cast<double>(num_pairs);
  done_.read_bytes += expert.bytes * static_cast<double>(num_read);
}

void WorkCounter::AddForward(const ForwardBatch& batch, const KvGroups& groups) {
  ++done_.num_forwards;
  done_.num_rows += batch.num_rows();
  done_.operations += row_operations_ * static_cast<double>(batch.num_rows());
  done_.read_bytes += layer_bytes_;
  for (const Attention& alike : attention_) {
    double kv_bytes = 0;  // of a token
    for (const int layer : alike.layers) kv_bytes += static_cast<double>(groups.ReadBytes(layer));
    for (const BatchSegment& segment : batch.segments) {
      const SparseView view = batch.View(static_cast<size_t>(&segment - batch.segments.data()));
      const int64_t window = view != SparseView{} ? view.sinks + view.recent + kSlotsPerTile * view.num_best : alike.window;
      double products = 0;  // of a query and a key
      int64_t last = 0;
      for (int64_t row = segment.row_begin; row < segment.row_begin + segment.num_rows; ++row) {
        const int64_t keys = batch.positions[static_cast<size_t>(row)] + 1;
        products += static_cast<double>(window > 0 ? std::min(keys, window) : keys);
        last = std::max(last, keys);
      }
      const int64_t seen = window > 0 ? std::min(last, window + segment.num_rows - 1) : last;
      done_.operations += 4.0 * alike.width * products;
      done_.read_bytes += kv_bytes * static_cast<double>(seen);
    }
  }
}

void WorkCounter::AddHead(const PackedMatrix& matrix, int64_t num_tiles, int64_t num_products) {
  const PackedView view = matrix.view();
  const auto tiles = static_cast<double>(NumTiles(view.num_rows));
  const double tile_products = static_cast<double>(view.num_rows) / tiles * static_cast<double>(view.num_cols);  // of a row and a tile
  done_.operations += 2.0 * tile_products * static_cast<double>(num_products);
  done_.read_bytes += static_cast<double>(matrix.num_bytes()) * static_cast<double>(num_tiles) / tiles;
}

}  // namespace llmi
