#include <algorithm>

#include "kernels/draws/draw.h"
#include "kernels/ops/vocab.h"
#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

__extension__ using Wide = unsigned __int128;

// Cuts tokens with a mass below `least`, but none that is as likely as the likeliest.
void CutBelow(const RowMasses& masses, double least, Row row) {
  const float maximum = masses.maximum();
  for (size_t i = 0; i < row.size(); ++i) {
    if (static_cast<double>(masses[static_cast<int64_t>(i)]) < least && row[i] < maximum) row[i] = kMinusInfinity;
  }
}

}  // namespace

void KeepMinP(const KernelContext& context, double min_p, Row row) {
  const auto size = static_cast<int64_t>(row.size());
  const float limit = MinPLimit(row[static_cast<size_t>(ArgMax(context, row.data(), size))], min_p);
  for (float& logit : row) {
    if (logit < limit) logit = kMinusInfinity;
  }
}

void KeepAboveEpsilon(const KernelContext& context, double epsilon, Row row) {
  const RowMasses masses(context, row);
  CutBelow(masses, epsilon * static_cast<double>(masses.total()), row);
}

void KeepAboveEta(const KernelContext& context, double epsilon, Row row) {
  const double entropy = RowMoments(context, row).Entropy();
  const RowMasses masses(context, row);
  CutBelow(masses, EtaOf(epsilon, entropy) * static_cast<double>(masses.total()), row);
}

void KeepPLess(const KernelContext& context, Row row) {
  const RowMasses masses(context, row);
  Wide sum_of_squares = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const Wide mass = masses[static_cast<int64_t>(i)];
    sum_of_squares += mass * mass;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (Wide{masses[static_cast<int64_t>(i)]} * masses.total() < sum_of_squares) row[i] = kMinusInfinity;
  }
}

void KeepTopNSigma(const KernelContext& context, double n, Row row) {
  const auto size = static_cast<int64_t>(row.size());
  const auto is_kept = [&](int64_t i) { return row[static_cast<size_t>(i)] > kMinusInfinity; };
  const auto value = [&](int64_t i) { return static_cast<double>(row[static_cast<size_t>(i)]); };
  const double count = LaneSum(size, [&](int64_t i) { return is_kept(i) ? 1.0 : 0.0; });
  const double mean = LaneSum(size, [&](int64_t i) { return is_kept(i) ? value(i) : 0.0; }) / count;
  const double squares = LaneSum(size, [&](int64_t i) { return is_kept(i) ? (value(i) - mean) * (value(i) - mean) : 0.0; });
  const double limit = value(ArgMax(context, row.data(), size)) - n * SqrtF64(squares / count);
  for (int64_t i = 0; i < size; ++i) {
    if (value(i) < limit) row[static_cast<size_t>(i)] = kMinusInfinity;
  }
}

}  // namespace llmi
