#include "bindings/py_constraint.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

namespace py = pybind11;

namespace llmi {

void PyConstraint::FillMask(std::span<uint32_t> words, int64_t vocab_size) {
  CallHook(ErrorKind::kHook, {request_id_}, [&] {
    const py::object state = state_ == nullptr ? py::object(py::none()) : state_->get();
    const py::tuple step = hooks_->Call("constraint_step", state, pending_, vocab_size);
    state_ = std::make_unique<HeldObject>(step[0]);
    pending_.clear();
    const auto mask = step[1].cast<py::array_t<uint32_t, py::array::c_style>>();
    CheckInternal(mask.size() == static_cast<py::ssize_t>(words.size()), "a constraint's mask has another size");
    std::copy_n(mask.data(), words.size(), words.begin());
  });
}

std::unique_ptr<TokenConstraint> PyConstraint::Fork() const {
  auto fork = std::make_unique<PyConstraint>(hooks_, request_id_);
  fork->pending_ = pending_;
  if (state_ == nullptr) return fork;
  CallHook(ErrorKind::kHook, {request_id_},
           [&] { fork->state_ = std::make_unique<HeldObject>(hooks_->Call("constraint_copy", state_->get())); });
  return fork;
}

bool PyConstraint::Accepting() {
  return CallHook(ErrorKind::kHook, {request_id_}, [&] {
    const py::object state = state_ == nullptr ? py::object(py::none()) : state_->get();
    return hooks_->Call("constraint_accepts", state, pending_).cast<bool>();
  });
}

}  // namespace llmi
