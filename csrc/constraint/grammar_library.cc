#include "constraint/grammar_library.h"

#include <dlfcn.h>

#include "core/errors.h"

namespace llmi {
namespace {

template <typename Function>
void Find(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  if (*function == nullptr) throw Error(ErrorKind::kInvalidArgument, std::string("the grammar library has no ") + name, "path");
}

}  // namespace

std::shared_ptr<const GrammarLibrary> GrammarLibrary::Open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw Error(ErrorKind::kInvalidArgument, std::string("the grammar library does not load: ") + (reason ? reason : path), "path");
  }
  auto library = std::make_shared<GrammarLibrary>();
  LibraryFunctions& functions = library->functions_;
  Find(handle, "llg_new_tokenizer_v2", &functions.new_tokenizer);
  Find(handle, "llg_free_tokenizer", &functions.free_tokenizer);
  Find(handle, "llg_constraint_init_set_defaults", &functions.set_defaults);
  Find(handle, "llg_new_matcher", &functions.new_matcher);
  Find(handle, "llg_clone_matcher", &functions.clone_matcher);
  Find(handle, "llg_free_matcher", &functions.free_matcher);
  Find(handle, "llg_validate_grammar", &functions.validate);
  Find(handle, "llg_matcher_get_mask_byte_size", &functions.mask_bytes);
  Find(handle, "llg_matcher_compute_mask_into", &functions.fill_mask);
  Find(handle, "llg_matcher_consume_tokens", &functions.consume);
  Find(handle, "llg_matcher_compute_ff_tokens", &functions.forced_tokens);
  Find(handle, "llg_matcher_is_accepting", &functions.is_accepting);
  Find(handle, "llg_matcher_get_error", &functions.error);
  using Version = const char* (*)();
  const auto version = reinterpret_cast<Version>(dlsym(handle, "llg_get_version"));
  if (version != nullptr) library->version_ = version();
  return library;
}

}  // namespace llmi
