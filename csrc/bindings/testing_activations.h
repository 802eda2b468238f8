// The forms of activations that quantised layers read, made and fetched for the tests.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "bindings/bind_testing.h"
#include "engine/options.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/linear_input.h"

namespace llmi {

using CodeBytes = pybind11::array_t<int8_t, pybind11::array::c_style>;

inline Activation ParseActivation(const std::string& name) {
  constexpr const char* kNames[] = {"silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu", "swiglu_clamped"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Activation>(i);
  }
  throw Error(ErrorKind::kInvalidArgument, "unknown activation " + name);
}

struct TestActivations {
  Placed<int8_t> codes;
  PlacedFloats scales, sums;
  Placed<int32_t> half_sums;
  std::optional<Placed<int8_t>> low;
  QuantizedRows rows;

  TestActivations(const KernelContext& context, int64_t num_rows, int64_t num_cols, bool fine, int bits)
      : codes(context, static_cast<size_t>(num_rows * num_cols)),
        scales(context, static_cast<size_t>(num_rows * num_cols / (fine ? 16 : 32))),
        sums(context, static_cast<size_t>(num_rows * num_cols / 32)),
        half_sums(context, static_cast<size_t>(num_rows * num_cols / 16)),
        rows{.num_cols = num_cols,
             .codes = codes.data(),
             .scales = scales.data(),
             .sums = sums.data(),
             .half_sums = half_sums.data(),
             .fine = fine} {
    if (HasTwoBytes(bits)) rows.low = low.emplace(context, static_cast<size_t>(num_rows * num_cols)).data();
  }

  // Replaces the codes by `bytes`: all high bytes, then all low ones. The scales stay.
  void Replace(const KernelContext& context, const CodeBytes& bytes) {
    const size_t count = static_cast<size_t>(bytes.size()) / 2;
    CheckArgument(low && codes.Fetch().size() == static_cast<pybind11::ssize_t>(count), "codes of 16 bits: two bytes for each value of x");
    const int8_t* high = bytes.data();
    const FloatArray scale = scales.Fetch();
    std::vector<int32_t> of_halves(count / 16);
    std::vector<float> of_blocks(count / 32);
    for (size_t i = 0; i < count; ++i) of_halves[i / 16] += 256 * high[i] + high[count + i];
    for (size_t b = 0; b < of_blocks.size(); ++b) {
      of_blocks[b] = scale.data()[b] * static_cast<float>(of_halves[2 * b] + of_halves[2 * b + 1]);
    }
    ToDevice(context, codes.data(), high, count);
    ToDevice(context, low->data(), high + count, count);
    ToDevice(context, half_sums.data(), of_halves.data(), of_halves.size() * sizeof(int32_t));
    ToDevice(context, sums.data(), of_blocks.data(), of_blocks.size() * sizeof(float));
  }

  // Codes, scales, sums and half sums; with 16 bits the low bytes, too.
  pybind11::tuple Fetch() const {
    if (!low) return pybind11::make_tuple(codes.Fetch(), scales.Fetch(), sums.Fetch(), half_sums.Fetch());
    return pybind11::make_tuple(codes.Fetch(), scales.Fetch(), sums.Fetch(), half_sums.Fetch(), low->Fetch());
  }
};

// Calls produce(out, input), which writes [num_rows, num_cols] to `out` and converts it to the forms of `input`. Returns what it wrote, the
// result of TestActivations::Fetch, and the values rounded to bf16, which only the CPU makes.
template <typename Produce>
pybind11::tuple ProducedForms(const KernelContext& context, int64_t num_rows, int64_t num_cols, bool fine, int bits,
                              const Produce& produce) {
  PlacedFloats out(context, static_cast<size_t>(num_rows * num_cols));
  const TestActivations activations(context, num_rows, num_cols, fine, bits);
  pybind11::array_t<uint16_t> rounded(context.device == nullptr ? num_rows * num_cols : 0);
  produce(out.data(), LinearInput{activations.rows, context.device == nullptr ? rounded.mutable_data() : nullptr});
  return pybind11::make_tuple(out.Fetch(), activations.Fetch(), rounded);
}

}  // namespace llmi
