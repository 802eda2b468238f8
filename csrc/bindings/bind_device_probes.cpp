// Measures how fast a device copies, draws, multiplies and attends, one op at a time, for benchmarks/gpu.py.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind_testing.h"
#include "bindings/gil.h"
#include "cache/kv_cache.h"
#include "core/aligned.h"
#include "core/errors.h"
#include "core/thread_pool.h"
#include "kernels/ops/attention.h"
#include "kernels/cuda/device_work.h"
#include "kernels/cuda/emulated_matrix.h"
#include "kernels/cuda/matrix_probe.h"
#include "kernels/cuda/null_device.h"
#include "kernels/cuda/stream_table.h"
#include "kernels/dispatch/device.h"
#include "kernels/layout/chunks.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/quantize_rows.h"
#include "kernels/dispatch/tables.h"
#include "sampling/edits.h"

namespace py = pybind11;

namespace llmi {
namespace {

constexpr int kRepeats = 16;

// The mean seconds of op(0) to op(kRepeats - 1), after one call that is not counted. last: memory that the ops write.
double SecondsEach(Device* device, const void* last, const std::function<void(int)>& op) {
  uint8_t byte = 0;
  op(0);
  device->Download(&byte, last, 1);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRepeats; ++i) op(i);
  device->Download(&byte, last, 1);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRepeats;
}

// Memory on the device, filled with `value`.
AlignedBuffer Filled(Device* device, int64_t num_bytes, uint8_t value) {
  AlignedBuffer buffer(static_cast<size_t>(num_bytes), "a device probe", device);
  const std::vector<uint8_t> bytes(std::min<size_t>(buffer.size(), 1 << 26), value);
  for (size_t done = 0; done < buffer.size(); done += bytes.size()) {
    device->Upload(buffer.data() + done, bytes.data(), std::min(bytes.size(), buffer.size() - done));
  }
  return buffer;
}

double MeasureCopy(const std::string& name, int64_t num_bytes) {
  const std::unique_ptr<Device> device = OpenTestDevice(name);
  const AlignedBuffer from = Filled(device.get(), num_bytes, 0);
  AlignedBuffer to = Filled(device.get(), num_bytes, 0);
  const double seconds = SecondsEach(device.get(), to.data(), [&](int) { device->Copy(to.data(), from.data(), to.size()); });
  return 2.0 * static_cast<double>(num_bytes) / seconds;
}

double MeasureDraws(const std::string& name, const SamplingParams& params, int64_t num_rows, int64_t vocab_size, int32_t num_drafted) {
  Validate(params, vocab_size);
  const std::unique_ptr<Device> device = OpenTestDevice(name);
  std::vector<float> logits(static_cast<size_t>(num_rows * vocab_size));
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(RaceScore(static_cast<uint32_t>(i * 2654435761u), 0.0f)) * -3.0f;
  }
  AlignedBuffer there(logits.size() * sizeof(float), "the draw probe", device.get());
  device->Upload(there.data(), logits.data(), there.size());
  DrawList draws;
  for (int64_t row = 0; row < num_rows; ++row) {
    draws.Add(params, {}, row, row, vocab_size);
    for (int32_t id = 0; id < num_drafted; ++id) draws.AddDrafted(id, {}, 1.0);  // rejected
  }
  return SecondsEach(device.get(), there.data(), [&](int) { device->Draw(draws.batch(), there.as<float>(), vocab_size); });
}

// Multiplies by several matrices in turn, so that none is still in a cache.
std::pair<double, int64_t> MeasureLinear(const std::string& name, const std::string& type_name, int64_t num_rows, int64_t num_outputs,
                                         int64_t num_cols) {
  const std::map<std::string, PackedType> types = {{"bf16", PackedType::kBF16},  {"fp16", PackedType::kF16}, {"q4_0", PackedType::kQ4},
                                                   {"q4_1", PackedType::kQ4Min}, {"q4_k", PackedType::kQ4K}, {"q5_0", PackedType::kQ5},
                                                   {"q5_k", PackedType::kQ5K},   {"q6_k", PackedType::kQ6K}, {"q8_0", PackedType::kQ8}};
  CheckArgument(types.contains(type_name), "a device probe: bf16, fp16, q4_0, q4_1, q4_k, q5_0, q5_k, q6_k or q8_0");
  CheckArgument(num_rows > 0 && num_outputs > 0 && num_cols > 0, "a device probe: at least one row, output and column");
  const PackedType host_type = types.at(type_name);
  CheckArgument(num_outputs % kTileRows == 0 && num_cols % PackedGroupColumns(host_type) == 0, "a device probe: whole tiles");
  const std::unique_ptr<Device> device = OpenTestDevice(name);
  const PackedType type = device->OwnForm(host_type);
  const bool in_chunks = HasChunksPacked(type);
  const int64_t num_bytes = num_outputs / kTileRows * (in_chunks ? ChunkTileBytes(type, num_cols) : PackedTileBytes(type, num_cols));
  constexpr int64_t kManyBytes = int64_t{1} << 28;
  const int64_t copies = std::clamp<int64_t>(kManyBytes / num_bytes, 1, kRepeats);
  const AlignedBuffer weights = Filled(device.get(), copies * num_bytes, 0x3C);
  AlignedBuffer x = Filled(device.get(), num_rows * num_cols * static_cast<int64_t>(sizeof(float)), 0x3C);
  AlignedBuffer codes = Filled(device.get(), num_rows * num_cols, 0);
  AlignedBuffer scales = Filled(device.get(), num_rows * num_cols / 8, 0);
  AlignedBuffer sums = Filled(device.get(), num_rows * num_cols / 8, 0);
  AlignedBuffer half_sums = Filled(device.get(), num_rows * num_cols / 4, 0);
  AlignedBuffer out = Filled(device.get(), num_rows * num_outputs * static_cast<int64_t>(sizeof(float)), 0);
  const QuantizedRows quantized = {.num_cols = num_cols,
                                   .codes = codes.as<int8_t>(),
                                   .scales = scales.as<float>(),
                                   .sums = sums.as<float>(),
                                   .half_sums = half_sums.as<int32_t>()};
  device->QuantizeRows(x.as<float>(), num_rows, quantized);
  const KernelContext context = {&GetKernelTable("reference"), &ThreadPool::Shared(), 1, device.get()};
  const double seconds = SecondsEach(device.get(), out.data(), [&](int i) {
    const LinearPart part = {.weights = {type, num_outputs, num_cols, weights.data() + i % copies * num_bytes, {}, in_chunks}};
    Linear(context, {.parts = &part,
                     .num_parts = 1,
                     .num_rows = num_rows,
                     .x = x.as<float>(),
                     .x_stride = num_cols,
                     .quantized = quantized,
                     .out = out.as<float>(),
                     .out_stride = num_outputs});
  });
  return {seconds, num_bytes};
}

// One layer's attention for the last num_rows tokens of each context.
double MeasureAttention(const std::string& name, const std::string& kv_dtype, const std::vector<int64_t>& contexts, int64_t num_rows,
                        int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  const std::unique_ptr<Device> device = OpenTestDevice(name);
  constexpr int64_t kBlock = 64;
  int64_t num_pages = 0;
  for (const int64_t length : contexts) {
    CheckArgument(num_rows > 0 && length >= num_rows, "a device probe: contexts hold the rows");
    num_pages += (length + kBlock - 1) / kBlock;
  }
  KvCache cache(KvGroups({{0, num_kv_heads, head_dim}}, ParseKvType(kv_dtype), kBlock), num_pages, device.get());
  std::vector<KvSequence> sequences(contexts.size());
  std::vector<AttentionSegment> segments;
  std::vector<int32_t> positions;
  for (size_t i = 0; i < contexts.size(); ++i) {
    cache.Init(&sequences[i]);
    CheckArgument(cache.TryReserve(&sequences[i], contexts[i]), "a device probe: the pages are too few");
    const int64_t base_len = contexts[i] - num_rows;
    segments.push_back({static_cast<int64_t>(positions.size()), num_rows, base_len, sequences[i].tables[0].data(), nullptr});
    for (int64_t row = 0; row < num_rows; ++row) positions.push_back(static_cast<int32_t>(base_len + row));
  }
  const KvView view = cache.View(0);
  const std::vector<uint8_t> page(static_cast<size_t>(view.page_bytes), 0x3C);
  for (int64_t i = 0; i < num_pages; ++i) device->Upload(view.base + i * view.page_bytes, page.data(), page.size());
  const int64_t width = num_heads * head_dim;
  const auto num_bytes = static_cast<int64_t>(positions.size() * sizeof(float)) * width;
  AlignedBuffer q = Filled(device.get(), num_bytes, 0x3C);
  AlignedBuffer out = Filled(device.get(), num_bytes, 0);
  const KernelContext context = {&GetKernelTable("reference"), &ThreadPool::Shared(), 1, device.get()};
  const double seconds = SecondsEach(device.get(), out.data(), [&](int) {
    PagedAttention(context, {.kv = view,
                             .segments = segments.data(),
                             .num_segments = static_cast<int64_t>(segments.size()),
                             .positions = positions.data(),
                             .q = q.as<float>(),
                             .q_stride = width,
                             .num_heads = num_heads,
                             .scale = 0.1f,
                             .out = out.as<float>(),
                             .out_stride = width});
  });
  for (KvSequence& sequence : sequences) cache.Free(&sequence);
  return seconds;
}

py::dict AnswersOf(const cuda::MatrixAnswers& answers) {
  py::dict dict;
  dict["error"] = answers.error;
  dict["rows_apart"] = answers.rows_apart;
  dict["columns_apart"] = answers.columns_apart;
  dict["zeros_neutral"] = answers.zeros_neutral;
  dict["order_free"] = answers.order_free;
  return dict;
}

py::dict ProbeMatrixInstructions() {
  py::dict probed;
  const std::vector<cuda::MatrixInstruction> instructions = cuda::CudaMatrixInstructions();
  for (const cuda::MatrixInstruction& instruction : instructions) {
    py::dict answers = AnswersOf(AskMatrixInstruction(instruction));
    answers[py::str("bits_of_" + instructions[0].name)] = GiveEqualBits(instructions[0], instruction);
    probed[instruction.name.c_str()] = answers;
  }
  return probed;
}

py::dict WorkOfDevices() {
  const cuda::DeviceWork work = cuda::WorkCounter::Shared().work();
  py::dict dict;
  dict["launches"] = work.launches;
  dict["replays"] = work.replays;
  dict["graph_nodes"] = work.graph_nodes;
  dict["uploads"] = work.uploads;
  dict["upload_bytes"] = work.upload_bytes;
  dict["copies"] = work.copies;
  dict["waits"] = work.waits;
  dict["streamed_bytes"] = work.streamed_bytes;
  dict["kernels"] = work.kernels;
  return dict;
}

// An instruction whose result product(a, b), a Python function, computes.
cuda::MatrixInstruction InstructionOf(const py::function& product, int64_t num_columns) {
  return {"", num_columns, [product](std::span<const uint16_t> a, std::span<const uint16_t> b) {
            const auto matrix = [](std::span<const uint16_t> values) {
              return py::array_t<uint16_t>({static_cast<int64_t>(values.size()) / cuda::kAskedDepth, cuda::kAskedDepth}, values.data());
            };
            const auto d = product(matrix(a), matrix(b)).cast<py::array_t<float, py::array::c_style>>();
            return std::vector<float>(d.data(), d.data() + d.size());
          }};
}

}  // namespace

void RegisterDeviceProbes(py::module_& module) {
  using Release = py::call_guard<GilReleased>;
  module.def("measure_device_copy", &MeasureCopy, Release(), py::arg("device"), py::arg("num_bytes"),
             "Bytes per second, read and written, of copies within the device.");
  module.def(
      "measure_device_draws", &MeasureDraws, Release(), py::arg("device"), py::arg("params"), py::arg("num_rows"), py::arg("vocab_size"),
      py::arg("num_drafted") = 0,
      "Seconds of one draw for each row of logits on the device, and of rejecting num_drafted tokens before it; logits are -3 log E of "
      "exponentials E.");
  module.def("measure_device_linear", &MeasureLinear, Release(), py::arg("device"), py::arg("type"), py::arg("num_rows"),
             py::arg("num_outputs"), py::arg("num_cols"),
             "Seconds of one linear layer over rows on the device, and the bytes of its weights: bf16, q4_0, q4_1 or q8_0.");
  module.def("measure_device_attention", &MeasureAttention, Release(), py::arg("device"), py::arg("kv_dtype"), py::arg("contexts"),
             py::arg("num_rows"), py::arg("num_heads"), py::arg("num_kv_heads"), py::arg("head_dim"),
             "Seconds of one layer's attention on the device, for the last num_rows tokens of each context.");
  using Lines = std::vector<std::tuple<std::string, std::string, int64_t, int64_t, int64_t, int64_t, std::string>>;
  const auto choices_of = [](const Lines& lines) {
    std::vector<cuda::StreamChoice> choices;
    for (const auto& [architecture, type, outputs, columns, first, last, variant] : lines) {
      choices.push_back({architecture, type, outputs, columns, first, last, variant});
    }
    return choices;
  };
  module.def(
      "faults_of_stream_table",
      [] {
        std::vector<std::string> faults;
        for (const cuda::StreamChoice& choice : cuda::kStreamTable) {
          if (std::string why = WhyNoStreamChoice(choice); !why.empty()) faults.push_back(std::move(why));
        }
        return faults;
      },
      "What is wrong with the committed table of variants of streamed layers.");
  module.def(
      "choose_stream_variant",
      [choices_of](const Lines& lines, const std::string& architecture, const std::string& type, int64_t num_outputs, int64_t num_cols,
                   int64_t num_rows) {
        const std::vector<cuda::StreamChoice> choices = choices_of(lines);
        const cuda::StreamVariant variant =
            cuda::StreamChoices(choices, architecture).Of(cuda::FindStreamType(type).value(), num_outputs, num_cols, num_rows);
        return std::make_pair(static_cast<int>(variant.rows), variant.blocks);
      },
      py::arg("lines"), py::arg("architecture"), py::arg("type"), py::arg("num_outputs"), py::arg("num_cols"), py::arg("num_rows"),
      "The rows form and blocks that a table of these lines chooses.");
  module.def(
      "why_no_stream_choice", [choices_of](const Lines& lines) { return WhyNoStreamChoice(choices_of(lines).at(0)); }, py::arg("lines"),
      "What is wrong with the first line.");
  module.def("device_work", &WorkOfDevices, "What the emulated and null devices of this process were given to do so far.");
  module.def(
      "open_null_devices", [](bool on) { opens_null_devices = on; }, py::arg("on"),
      "Whether emulated devices that are opened from now on run no kernel: all tokens are 0, and a step takes the host's time alone.");
  module.def(
      "fail_device_launch", [](int64_t number) { cuda::failing_launch = number; }, py::arg("number"),
      "The emulated launch of this number from now on fails, as one whose kernel stops on a GPU; 0: none does.");
  module.def(
      "mix_emulated_rows", [](bool on) { cuda::emulated_rows_mix = on; }, py::arg("on"),
      "Whether the emulated matrix instruction, when it is asked, lets rows of A change each other's bits.");
  module.def("probe_matrix_instructions", &ProbeMatrixInstructions,
             "What the first GPU's matrix instructions do with bits (docs/decisions/0014), by instruction.");
  module.def(
      "ask_matrix_product",
      [](const py::function& product, int64_t num_columns) { return AnswersOf(AskMatrixInstruction(InstructionOf(product, num_columns))); },
      py::arg("product"), py::arg("num_columns"), "Asks product(a [64, 64], b [num_columns, 64]) -> [64, num_columns] the same questions.");
  module.def(
      "give_equal_bits",
      [](const py::function& first, int64_t num_first, const py::function& second, int64_t num_second) {
        return GiveEqualBits(InstructionOf(first, num_first), InstructionOf(second, num_second));
      },
      py::arg("first"), py::arg("num_first"), py::arg("second"), py::arg("num_second"),
      "Whether two such products agree in the columns that both have.");
}

}  // namespace llmi
