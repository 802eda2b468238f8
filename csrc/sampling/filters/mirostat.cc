#include <algorithm>
#include <cmath>
#include <vector>

#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {
namespace {

constexpr int64_t kLookedAt = 100;  // as in llama.cpp

// Zipf's exponent of the likeliest tokens, by least squares: sum t_i b_i / sum t_i^2 with t_i = ln((i + 2) / (i + 1)) and b_i the
// difference of the logits of ranks i and i + 1.
double ZipfExponent(std::span<const int32_t> ids, std::span<const float> row) {
  double products = 0;
  double squares = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const double t = LogF64(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    const double b = static_cast<double>(row[static_cast<size_t>(ids[i])]) - static_cast<double>(row[static_cast<size_t>(ids[i + 1])]);
    products += t * b;
    squares += t * t;
  }
  return products / squares;
}

// ((e 2^mu) / (1 - V^-e))^(1/s), e = s - 1: the number of tokens to keep, at least 1 and at most V.
int64_t NumKept(double exponent, double mu, int64_t vocab_size) {
  const double excess = exponent - 1;
  const double log_vocab = LogF64(static_cast<double>(vocab_size));
  // ln(e / (1 - V^-e)); at e = 0 its limit.
  double log_factor = -LogF64(log_vocab);
  if (excess != 0) {
    const double power = -excess * log_vocab < -700 ? 0.0 : ExpF64(-excess * log_vocab);
    if (power != 1) log_factor = LogF64(std::fabs(excess)) - LogF64(std::fabs(1 - power));
  }
  const double log_power = log_factor + mu * kLn2;
  if (log_power <= 0) return 1;
  const double log_kept = log_power / exponent;  // infinite if all logits are equal
  return log_kept >= log_vocab ? vocab_size : std::max<int64_t>(1, static_cast<int64_t>(ExpF64(log_kept)));
}

}  // namespace

void KeepMirostat(const KernelContext& context, int64_t version, double mu, Row row) {
  if (version == 1) {
    const std::vector<int32_t> ids = RankedTopIds(row, kLookedAt);
    if (ids.size() > 1) KeepTopK(NumKept(ZipfExponent(ids, row), mu, static_cast<int64_t>(row.size())), row);
    return;
  }
  const RowMasses masses(context, row);
  const double least = masses.LogTotal() - mu * kLn2;  // of the offsets of tokens with -log2 p <= mu
  if (least > 0) {                                     // the likeliest token is too surprising: it stays alone
    const auto best = static_cast<int32_t>(masses.best());
    KeepOnly({&best, 1}, row);
    return;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (masses.Offset(static_cast<int64_t>(i)) < least) row[i] = kMinusInfinity;
  }
}

}  // namespace llmi
