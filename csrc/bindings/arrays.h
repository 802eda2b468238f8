// NumPy arrays for Python, as copies of what the core holds.
#pragma once

#include <pybind11/numpy.h>

#include <ranges>

namespace llmi {

// values: a vector or a span.
template <std::ranges::contiguous_range Values>
auto CopyArray(const Values& values) {
  using Value = std::remove_cv_t<std::ranges::range_value_t<Values>>;
  return pybind11::array_t<Value>(static_cast<pybind11::ssize_t>(std::ranges::size(values)), std::ranges::data(values));
}

}  // namespace llmi
