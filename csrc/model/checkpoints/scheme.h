// A quantisation scheme of checkpoints: what config.json says of it, and how a matrix is read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json_fields.h"
#include "model/checkpoints/matrix.h"
#include "model/checkpoints/parts.h"

namespace llmi::checkpoints {

// A key of the config that may stay unread, and why. Its name may hold *, which stands for any text.
struct InertKey {
  const char* name;
  const char* reason;
};
constexpr const char* kTensorsShowWhich = "the tensors show which modules are quantised";

// The object quantization_config of config.json. All functions throw Error(kUnsupportedModel) that names the key, or Error(kModelFile) for
// a value of another kind.
class SchemeConfig {
 public:
  // path: of config.json. method: its quant_method.
  SchemeConfig(const Json& object, const std::string& path, std::string method);
  // A part of it: config_groups.group_0.weights.
  SchemeConfig(JsonFields fields, std::string method) : fields_(std::move(fields)), method_(std::move(method)) {}

  const std::string& method() const { return method_; }
  const JsonFields& fields() const { return fields_; }

  // One of `known`; absent or null: fallback.
  std::string Choice(const std::string& key, std::initializer_list<const char*> known, const std::string& fallback) const;
  // One of `known`; absent or null: fallback, or refused if it is -1.
  int64_t Number(const std::string& key, std::initializer_list<int64_t> known, int64_t fallback = -1) const;
  // Columns in a group: a positive number, or 0 for -1 (a whole row). Absent or null: refused.
  int64_t GroupSize() const;
  // Rows and columns of a block: [128, 128] or "128x128". Absent, null or another value: refused.
  std::pair<int64_t, int64_t> Block(const std::string& key) const;
  // The key must be absent, null, false, or an empty list or object.
  void RequireOff(const std::string& key, const char* what) const;
  [[noreturn]] void Refuse(const std::string& key, const std::string& problem) const;
  // Throws unless each key was read or is in one of the lists.
  void CheckAllRead(std::initializer_list<std::span<const InertKey>> lists) const;

 private:
  JsonFields fields_;
  std::string method_;
};

// Keys that auto-round writes in addition to those of the format it exports to.
std::span<const InertKey> AutoRoundKeys();

class Scheme {
 public:
  virtual ~Scheme() = default;
  // The ends, after the module's name, of the names of tensors that make up a quantised matrix, besides "weight".
  virtual std::span<const char* const> parts() const = 0;
  // The same for tensors that hold no weights and may stay unread.
  virtual std::span<const char* const> inert_parts() const { return {}; }
  // What stands between a module's name and a part's.
  virtual char separator() const { return '.'; }
  // The name of the plain tensor of a module.
  virtual std::string NameOf(const std::string& module) const { return module + ".weight"; }
  // Throws Error(kModelFile, kUnsupportedModel) that names a tensor.
  virtual MatrixForm Read(const ModuleParts& parts) const = 0;
};

// One function for each value of quant_method (registry.cc).
std::unique_ptr<Scheme> ReadAwq(const SchemeConfig& config);
std::unique_ptr<Scheme> ReadGptq(const SchemeConfig& config);
std::unique_ptr<Scheme> ReadCompressedTensors(const SchemeConfig& config);
std::unique_ptr<Scheme> ReadFp8(const SchemeConfig& config);
std::unique_ptr<Scheme> ReadBitsandbytes(const SchemeConfig& config);
std::unique_ptr<Scheme> ReadMxfp4(const SchemeConfig& config);
std::unique_ptr<Scheme> ReadTorchao(const SchemeConfig& config);

// The scheme that config.json names. Throws Error(kUnsupportedModel) listing the known ones.
std::unique_ptr<Scheme> ReadScheme(const SchemeConfig& config);

// ceil(a / b)
inline uint64_t Groups(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// The form of a matrix of this shape whose grid is [num_rows, groups], row by row; group_size 0: a whole row.
MatrixForm RowGridForm(const TensorView& codes, CodeLayout layout, int bits, uint64_t num_rows, uint64_t num_cols, int64_t group_size);
// The same for a grid [groups, num_rows].
MatrixForm ColumnGridForm(const TensorView& codes, CodeLayout layout, int bits, uint64_t num_rows, uint64_t num_cols, int64_t group_size);

}  // namespace llmi::checkpoints
