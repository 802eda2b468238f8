// The grids into which the IQ types of GGUF index: points of eight values (IQ1, IQ2) or four (IQ3).
#pragma once

#include <cstdint>

namespace llmi {

extern const uint16_t kIq2XxsGrid[256];
extern const uint16_t kIq2XsGrid[512];
extern const uint16_t kIq2SGrid[1024];
extern const uint16_t kIq3XxsGrid[256];
extern const uint16_t kIq3SGrid[512];
extern const uint16_t kIq1Grid[2048];  // of IQ1_S and IQ1_M

}  // namespace llmi
