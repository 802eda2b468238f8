#include <algorithm>
#include <cmath>

#include "sampling/filters/filters.h"
#include "sampling/filters/row.h"

namespace llmi {

void AdaptLogits(const KernelContext& context, double target, Row row) {
  // The constants of llama.cpp.
  constexpr double kPeak = 5.0;
  constexpr double kSharpness = 10.0;
  constexpr double kWidth = 0.3;
  const RowMasses masses(context, row);
  const double per_mass = 1.0 / (kWidth * static_cast<double>(masses.total()));
  const double middle = target / kWidth;
  const uint64_t* mass = masses.data();
  // Pieces, and loops without branches, which compilers turn into vector code.
  constexpr size_t kPiece = 64;
  for (size_t begin = 0; begin < row.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, row.size() - begin);
    float adapted[kPiece];
    for (size_t i = 0; i < count; ++i) {
      const double distance = std::fabs(MassValue(mass[begin + i]) * per_mass - middle);
      adapted[i] = static_cast<float>(kPeak - kSharpness * distance * distance / (1.0 + distance));
    }
    for (size_t i = 0; i < count; ++i) {
      if (row[begin + i] > kMinusInfinity) row[begin + i] = adapted[i];
    }
  }
}

}  // namespace llmi
