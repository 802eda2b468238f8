#include "model/stage_calls.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/errors.h"
#include "model/batch_bytes.h"

namespace llmi {
namespace {

class Writer {
 public:
  template <typename T>
  void Add(const std::vector<T>& values) {
    const uint64_t count = values.size();
    Append(&count, sizeof count);
    if constexpr (std::is_trivially_copyable_v<T>) {
      Append(values.data(), count * sizeof(T));
    } else {
      for (const T& value : values) Add(value);
    }
  }
  std::vector<uint8_t> bytes;

 private:
  void Append(const void* data, size_t size) {
    const auto* begin = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  }
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  template <typename T>
  void Take(std::vector<T>* values) {
    uint64_t count = 0;
    Copy(&count, sizeof count);
    if constexpr (std::is_trivially_copyable_v<T>) {
      CheckArgument(count <= bytes_.size() / sizeof(T), "stages: a message ends too soon");
      values->resize(count);
      Copy(values->data(), count * sizeof(T));
    } else {
      CheckArgument(count <= bytes_.size() / sizeof count, "stages: a message ends too soon");
      values->resize(count);
      for (T& value : *values) Take(&value);
    }
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  void Copy(void* to, size_t size) {
    CheckArgument(size <= bytes_.size(), "stages: a message ends too soon");
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  std::span<const uint8_t> bytes_;
};

}  // namespace

std::vector<uint8_t> ToBytes(const StageMessage& message) {
  Writer writer;
  writer.Add(message.events);
  writer.Add(ToBytes(message.batch));
  writer.Add(message.rows);
  writer.Add(message.state_faults);
  writer.Add(message.taps);
  writer.Add(message.attention);
  std::vector<int32_t> layers;
  std::vector<std::vector<float>> kept;
  for (const auto& [layer, rows] : message.kept) {
    layers.push_back(layer);
    kept.push_back(rows);
  }
  writer.Add(layers);
  writer.Add(kept);
  writer.Add(message.busy_s);
  return std::move(writer.bytes);
}

StageMessage ReadStage(std::span<const uint8_t> bytes, const ModelSpec& spec, const KvCache& cache) {
  Reader reader(bytes);
  StageMessage message;
  std::vector<uint8_t> batch;
  std::vector<int32_t> layers;
  std::vector<std::vector<float>> kept;
  reader.Take(&message.events);
  reader.Take(&batch);
  message.batch = BatchFromBytes(batch);
  CheckBatch(message.batch, spec, cache.groups(), cache.pool().num_pages());
  for (const PageEvent& event : message.events) CheckArgument(cache.Knows(event), "stages: a page that the cache does not have");
  reader.Take(&message.rows);
  reader.Take(&message.state_faults);
  reader.Take(&message.taps);
  reader.Take(&message.attention);
  reader.Take(&layers);
  reader.Take(&kept);
  reader.Take(&message.busy_s);
  const auto hidden = static_cast<size_t>(spec.hidden_size);
  const size_t num_values = static_cast<size_t>(message.batch.num_rows()) * hidden;
  bool fits = reader.at_end() && message.rows.size() == num_values && message.state_faults.size() == message.batch.states.size() &&
              layers.size() == kept.size() && message.taps.size() == message.batch.tap_layers.size() &&
              message.attention.size() == message.batch.attention_layers.size();
  for (const std::vector<float>& tap : message.taps)
    fits = fits && (tap.empty() || tap.size() == message.batch.wanted_rows.size() * hidden);
  for (size_t i = 0; fits && i < layers.size(); ++i) {
    fits = layers[i] >= 0 && layers[i] <= spec.num_layers() && kept[i].size() == num_values;
    if (fits) message.kept[layers[i]] = std::move(kept[i]);
  }
  CheckArgument(fits, "stages: a message does not fit its batch");
  return message;
}

}  // namespace llmi
