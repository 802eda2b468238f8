// The functions of cuBLASLt that llmi calls, implemented on the host, for tests of these calls (tests/kernels/test_cublas.py). Matrices are
// stored column by column, as in the library's documentation; sums are in double. A product is refused if it departs from its plan: memory
// with a smaller alignment, a workspace that is too small, or an algorithm that was not chosen for it.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <set>

#include "core/bfloat16.h"
#include "core/half.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 7;
constexpr int kNotSupported = 15;
constexpr int kFloat16 = 2;
constexpr int kBfloat16 = 14;
constexpr size_t kWorkspace = size_t{1} << 20;  // what its algorithms need

struct Product {
  int compute_type;
  int scale_type;
  int32_t transpose[2] = {0, 0};
};

struct Layout {
  int type;
  uint64_t rows;
  uint64_t cols;
  int64_t leading;
};

struct Preference {
  size_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {
  uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

std::mutex mutex;
std::set<const void*> objects;  // that live, of all handles
std::atomic<int> num_handles = 0;

bool AllLive(std::initializer_list<const void*> wanted) {
  const std::lock_guard lock(mutex);
  return std::all_of(wanted.begin(), wanted.end(), [](const void* object) { return objects.contains(object); });
}

template <typename T, typename... Fields>
int Create(void** out, Fields... fields) {
  const std::lock_guard lock(mutex);
  *out = new T{fields...};
  objects.insert(*out);
  return kSuccess;
}

template <typename T>
int Destroy(void* object) {
  const std::lock_guard lock(mutex);
  if (objects.erase(object) == 0) return kInvalidValue;
  delete static_cast<T*>(object);
  return kSuccess;
}

// Of the product and its layouts: what an algorithm is good for.
Algorithm Chosen(const Product& product, const Layout* const (&layouts)[4], const Preference& preference) {
  Algorithm algorithm{};
  uint64_t hash = static_cast<uint64_t>(product.transpose[0] * 2 + product.transpose[1]);
  for (const Layout* layout : layouts) {
    for (const uint64_t value : {static_cast<uint64_t>(layout->type), layout->rows, layout->cols, static_cast<uint64_t>(layout->leading)}) {
      hash = (hash ^ value) * 0x100000001B3u;
    }
  }
  algorithm.data[0] = hash;
  for (int i = 0; i < 4; ++i) algorithm.data[1 + i] = preference.alignment[i];
  return algorithm;
}

double Element(const void* matrix, const Layout& layout, uint64_t row, uint64_t col) {
  const uint16_t bits = static_cast<const uint16_t*>(matrix)[row + col * static_cast<uint64_t>(layout.leading)];
  return static_cast<double>(layout.type == kBfloat16 ? llmi::Bfloat16ToFloat(bits) : llmi::HalfToFloat(bits));
}

}  // namespace

extern "C" {

int cublasLtCreate(void** handle) {
  ++num_handles;
  return Create<int>(handle, 1);
}
int cublasLtDestroy(void* handle) {
  Destroy<int>(handle);
  if (--num_handles == 0 && !objects.empty()) __builtin_trap();  // something was left behind
  return kSuccess;
}
int cublasLtMatmulDescCreate(void** product, int compute_type, int scale_type) {
  return Create<Product>(product, compute_type, scale_type);
}
int cublasLtMatmulDescDestroy(void* product) { return Destroy<Product>(product); }
int cublasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, size_t num_bytes) {
  if ((attribute != 3 && attribute != 4) || num_bytes != sizeof(int32_t)) return kInvalidValue;
  std::memcpy(&static_cast<Product*>(product)->transpose[attribute - 3], value, num_bytes);
  return kSuccess;
}
int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t cols, int64_t leading) {
  return Create<Layout>(layout, type, rows, cols, leading);
}
int cublasLtMatrixLayoutDestroy(void* layout) { return Destroy<Layout>(layout); }
int cublasLtMatmulPreferenceCreate(void** preference) { return Create<Preference>(preference); }
int cublasLtMatmulPreferenceDestroy(void* preference) { return Destroy<Preference>(preference); }
int cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t num_bytes) {
  auto* p = static_cast<Preference*>(preference);
  if (attribute == 1 && num_bytes == sizeof(uint64_t)) {
    std::memcpy(&p->workspace, value, num_bytes);
  } else if (attribute >= 5 && attribute <= 8 && num_bytes == sizeof(uint32_t)) {
    std::memcpy(&p->alignment[attribute - 5], value, num_bytes);
  } else {
    return kInvalidValue;
  }
  return kSuccess;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* product, void* a, void* b, void* c, void* d, void* preference, int most,
                                   Heuristic* found, int* count) {
  if (!AllLive({handle, product, a, b, c, d, preference})) return kInvalidValue;
  const auto& p = *static_cast<Product*>(product);
  const Layout* const layouts[4] = {static_cast<Layout*>(a), static_cast<Layout*>(b), static_cast<Layout*>(c), static_cast<Layout*>(d)};
  const bool known = p.compute_type == 68 && p.scale_type == 0 && p.transpose[0] == 1 && p.transpose[1] == 0 &&
                     (layouts[0]->type == kBfloat16 || layouts[0]->type == kFloat16) && layouts[1]->type == layouts[0]->type &&
                     layouts[2]->type == 0 && layouts[3]->type == 0;
  if (!known || most < 1) return kNotSupported;
  const auto& wanted = *static_cast<Preference*>(preference);
  *count = wanted.workspace >= kWorkspace ? 1 : 0;
  found[0] = {Chosen(p, layouts, wanted), kWorkspace, kSuccess, 1.0f, {}};
  return kSuccess;
}

int cublasLtMatmul(void* handle, void* product, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                   const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                   size_t workspace_bytes, void* /*stream*/) {
  if (!AllLive({handle, product, a_layout, b_layout, c_layout, d_layout})) return kInvalidValue;
  const Layout* const layouts[4] = {static_cast<Layout*>(a_layout), static_cast<Layout*>(b_layout), static_cast<Layout*>(c_layout),
                                    static_cast<Layout*>(d_layout)};
  Preference as_chosen;
  const void* const matrices[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    as_chosen.alignment[i] = static_cast<uint32_t>(algorithm->data[1 + i]);
    if (reinterpret_cast<uintptr_t>(matrices[i]) % as_chosen.alignment[i] != 0) return kInvalidValue;
  }
  const Algorithm chosen = Chosen(*static_cast<Product*>(product), layouts, as_chosen);
  if (std::memcmp(&chosen, algorithm, sizeof chosen) != 0 || workspace_bytes < kWorkspace) return kInvalidValue;
  std::memset(workspace, 0xFF, kWorkspace);
  const auto scale = static_cast<double>(*static_cast<const float*>(alpha));
  const auto kept = static_cast<double>(*static_cast<const float*>(beta));
  const Layout& left = *layouts[0];
  const Layout& right = *layouts[1];
  const Layout& out = *layouts[3];
  if (left.cols != out.rows || right.cols != out.cols || left.rows != right.rows) return kInvalidValue;
  for (uint64_t col = 0; col < out.cols; ++col) {
    for (uint64_t row = 0; row < out.rows; ++row) {
      double sum = 0;
      for (uint64_t k = 0; k < left.rows; ++k) sum += Element(a, left, k, row) * Element(b, right, k, col);
      const uint64_t at = row + col * static_cast<uint64_t>(out.leading);
      const double before = kept == 0 ? 0 : kept * static_cast<double>(static_cast<const float*>(c)[at]);
      static_cast<float*>(d)[at] = static_cast<float>(scale * sum + before);
    }
  }
  return kSuccess;
}

}  // extern "C"
