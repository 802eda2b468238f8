// A request's constraints from their Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "constraint/token_constraint.h"

namespace llmi {

// given: None; a GrammarMatcher at its beginning, of which copies are made; or Python's RequestHooks with a Constraint. ends: the tokens
// that end a text. Returns `count` constraints, or none.
std::vector<std::unique_ptr<TokenConstraint>> MakeConstraints(const pybind11::object& given, const std::vector<int32_t>& ends,
                                                              int64_t count, uint64_t request_id);

}  // namespace llmi
