#include "model/inert.h"

#include <cstddef>

namespace llmi {
namespace {

struct Rule {
  const char* name;  // * stands for any text
  const char* reason;
};

constexpr Rule kTensorRules[] = {
    {"*.rotary_emb.inv_freq", "computed from the config"},
};

}  // namespace

bool Matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last * so far, and where its text may end next
  size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

const char* InertTensorReason(const std::string& name) {
  for (const Rule& rule : kTensorRules) {
    if (Matches(rule.name, name)) return rule.reason;
  }
  return nullptr;
}

}  // namespace llmi
