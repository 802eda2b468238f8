// A tensor file for the readers of a model. Each tensor that is looked up is noted, so that an error can name the unread ones.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace llmi {

// A view: the file must outlive it. Only one thread may use it.
class RecordedTensors : public TensorFile {
 public:
  explicit RecordedTensors(const TensorFile& file) : file_(&file) {}

  const TensorView* Find(const std::string& name) const override {
    read_.insert(name);
    return file_->Find(name);
  }
  std::vector<const TensorView*> Tensors() const override { return file_->Tensors(); }

  // Tensors that were not looked up.
  std::vector<const TensorView*> Unread() const {
    std::vector<const TensorView*> unread;
    for (const TensorView* view : file_->Tensors()) {
      if (!read_.contains(view->name)) unread.push_back(view);
    }
    return unread;
  }

 private:
  const TensorFile* file_;
  mutable std::set<std::string> read_;
};

}  // namespace llmi
