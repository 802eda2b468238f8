#include "kernels/cuda/cublas_lt.h"

#include <bit>
#include <utility>

#include "core/errors.h"
#include "kernels/cuda/opened_library.h"

namespace llmi::cuda {
namespace {

// Declarations from cublasLt.h, with the same values in CUDA 12 and 13; builds do not need that header.
using Status = int;  // 0: success
constexpr int kFloat32 = 0;
constexpr int kFloat16 = 2;
constexpr int kBfloat16 = 14;
constexpr int kComputeFloat32 = 68;
constexpr int kTransposeA = 3;  // attributes of a product
constexpr int32_t kTransposed = 1;
constexpr int kMostWorkspace = 1;  // attributes of a preference
constexpr int kAlignmentA = 5;
constexpr int kAlignmentB = 6;
constexpr int kAlignmentC = 7;
constexpr int kAlignmentD = 8;

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};

void Check(Status status, const char* what) {
  if (status != 0) throw Error(ErrorKind::kDevice, "cuBLASLt: " + std::string(what) + ": status " + std::to_string(status));
}

// The alignment that it may assume: a power of two of bytes, 256 at most.
uint32_t Alignment(const void* pointer) { return 1u << std::countr_zero(reinterpret_cast<uintptr_t>(pointer) | 256u); }

// One of the library's objects.
class Object {
 public:
  using Destroy = Status (*)(void*);
  explicit Object(Destroy destroy) : destroy_(destroy) {}
  ~Object() {
    if (object_ != nullptr) destroy_(object_);
  }
  Object(Object&& other) noexcept : destroy_(other.destroy_), object_(std::exchange(other.object_, nullptr)) {}
  Object& operator=(Object&&) = delete;
  void* get() const { return object_; }
  void** out() { return &object_; }

 private:
  Destroy destroy_;
  void* object_ = nullptr;
};

}  // namespace

struct CublasLt::Library : OpenedLibrary {
  Status (*create)(void** handle);
  Status (*destroy)(void* handle);
  Status (*product_create)(void** product, int compute_type, int scale_type);
  Status (*product_destroy)(void* product);
  Status (*product_set)(void* product, int attribute, const void* value, size_t num_bytes);
  Status (*layout_create)(void** layout, int type, uint64_t num_rows, uint64_t num_cols, int64_t leading);
  Status (*layout_destroy)(void* layout);
  Status (*preference_create)(void** preference);
  Status (*preference_destroy)(void* preference);
  Status (*preference_set)(void* preference, int attribute, const void* value, size_t num_bytes);
  Status (*find)(void* handle, void* product, void* a, void* b, void* c, void* d, void* preference, int most, Heuristic* found, int* count);
  Status (*multiply)(void* handle, void* product, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout,
                     const void* beta, const void* c, void* c_layout, void* d, void* d_layout, const Algorithm* algorithm, void* workspace,
                     size_t workspace_bytes, void* stream);

  explicit Library(const std::string& name) : OpenedLibrary("cuBLASLt", name) {
    Find("cublasLtCreate", &create);
    Find("cublasLtDestroy", &destroy);
    Find("cublasLtMatmulDescCreate", &product_create);
    Find("cublasLtMatmulDescDestroy", &product_destroy);
    Find("cublasLtMatmulDescSetAttribute", &product_set);
    Find("cublasLtMatrixLayoutCreate", &layout_create);
    Find("cublasLtMatrixLayoutDestroy", &layout_destroy);
    Find("cublasLtMatmulPreferenceCreate", &preference_create);
    Find("cublasLtMatmulPreferenceDestroy", &preference_destroy);
    Find("cublasLtMatmulPreferenceSetAttribute", &preference_set);
    Find("cublasLtMatmulAlgoGetHeuristic", &find);
    Find("cublasLtMatmul", &multiply);
  }
};

struct CublasLt::Plan {
  Object product;
  Object weights;
  Object x;
  Object out;
  Algorithm algorithm{};
};

CublasLt::CublasLt(const std::string& library) : library_(std::make_unique<Library>(library)) {
  Check(library_->create(&handle_), "its start");
}

CublasLt::~CublasLt() {
  plans_.clear();
  library_->destroy(handle_);
}

// Its matrices are stored column by column: x [num_rows, num_cols] is its [num_cols, num_rows], and the product is
// out^T [num_outputs, num_rows] = W x^T, with W as the transpose of the matrix that it sees in the memory.
const CublasLt::Plan& CublasLt::PlanOf(const FreeProduct& p) {
  const Shape shape = {p.format,     p.num_rows,           p.num_outputs,  p.num_cols,
                       p.out_stride, Alignment(p.weights), Alignment(p.x), Alignment(p.out)};
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second;
  const Library& lt = *library_;
  Plan plan = {Object(lt.product_destroy), Object(lt.layout_destroy), Object(lt.layout_destroy), Object(lt.layout_destroy)};
  Check(lt.product_create(plan.product.out(), kComputeFloat32, kFloat32), "a product");
  Check(lt.product_set(plan.product.get(), kTransposeA, &kTransposed, sizeof kTransposed), "a product");
  const auto layout = [&](Object* object, int type, int64_t num_rows, int64_t num_cols, int64_t leading) {
    Check(lt.layout_create(object->out(), type, static_cast<uint64_t>(num_rows), static_cast<uint64_t>(num_cols), leading), "a layout");
  };
  const int half = p.format == HalfFormat::kBF16 ? kBfloat16 : kFloat16;
  layout(&plan.weights, half, p.num_cols, p.num_outputs, p.num_cols);
  layout(&plan.x, half, p.num_cols, p.num_rows, p.num_cols);
  layout(&plan.out, kFloat32, p.num_outputs, p.num_rows, p.out_stride);
  Object preference(lt.preference_destroy);
  Check(lt.preference_create(preference.out()), "a preference");
  const auto prefer = [&](int attribute, auto value) {
    Check(lt.preference_set(preference.get(), attribute, &value, sizeof value), "a preference");
  };
  prefer(kMostWorkspace, kWorkspaceBytes);
  prefer(kAlignmentA, Alignment(p.weights));
  prefer(kAlignmentB, Alignment(p.x));
  prefer(kAlignmentC, Alignment(p.out));
  prefer(kAlignmentD, Alignment(p.out));
  Heuristic best{};
  int count = 0;
  Check(lt.find(handle_, plan.product.get(), plan.weights.get(), plan.x.get(), plan.out.get(), plan.out.get(), preference.get(), 1, &best,
                &count),
        "the choice of an algorithm");
  if (count == 0) {
    throw Error(ErrorKind::kDevice, "cuBLASLt has no algorithm for " + std::to_string(p.num_rows) + " rows, " +
                                        std::to_string(p.num_outputs) + " outputs and " + std::to_string(p.num_cols) + " columns");
  }
  Check(best.state, "the choice of an algorithm");
  plan.algorithm = best.algorithm;
  return plans_.emplace(shape, std::move(plan)).first->second;
}

void CublasLt::Multiply(const FreeProduct& p, void* stream) {
  const Plan& plan = PlanOf(p);
  const float one = 1.0f;
  const float kept = p.accumulate ? 1.0f : 0.0f;
  Check(library_->multiply(handle_, plan.product.get(), &one, p.weights, plan.weights.get(), p.x, plan.x.get(), &kept, p.out,
                           plan.out.get(), p.out, plan.out.get(), &plan.algorithm, p.workspace, kWorkspaceBytes, stream),
        "a product");
}

}  // namespace llmi::cuda
