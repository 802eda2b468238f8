// Keyword arguments of a binding, read by name into the fields of a struct: for calls that would otherwise have a long list of parameters.
#pragma once

#include <pybind11/pybind11.h>

#include <set>
#include <string>
#include <utility>

namespace llmi {

class Keywords {
 public:
  // owner, noun: what error messages call the function and its arguments, for instance "Request" and "argument".
  Keywords(pybind11::dict given, std::string owner, std::string noun = "argument")
      : given_(std::move(given)), owner_(std::move(owner)), noun_(std::move(noun)) {}

  // The argument's value, or null if it is not given.
  pybind11::object Find(const char* name) {
    known_.insert(name);
    return given_.contains(name) ? pybind11::object(given_[name]) : pybind11::object();
  }

  // The result of convert(value). Throws TypeError if the value has another type than it expects.
  template <typename Convert>
  auto Converted(const char* name, const pybind11::object& value, const Convert& convert) const {
    try {
      return convert(value);
    } catch (const pybind11::cast_error&) {
      throw pybind11::type_error(owner_ + "'s " + noun_ + " " + name + " has another type: " + std::string(pybind11::repr(value)));
    }
  }

  // Stores the argument, if it is given. Throws TypeError as Converted does.
  template <typename T>
  void Read(const char* name, T* field) {
    if (const pybind11::object value = Find(name)) *field = As<T>(name, value);
  }

  // The argument, which must be given. Throws TypeError if it is missing, and as Converted does.
  template <typename T>
  T Take(const char* name) {
    const pybind11::object value = Find(name);
    if (!value) throw pybind11::type_error(owner_ + " lacks the " + noun_ + " " + name);
    return As<T>(name, value);
  }

  // Whether somebody has looked for this argument.
  bool IsKnown(const std::string& name) const { return known_.contains(name); }

  // Throws TypeError for an argument that nobody has looked for.
  void CheckAllKnown() const {
    for (const auto& entry : given_) {
      const auto name = entry.first.cast<std::string>();
      if (!known_.contains(name)) throw pybind11::type_error(owner_ + " has no " + noun_ + " " + name);
    }
  }

 private:
  template <typename T>
  T As(const char* name, const pybind11::object& value) const {
    return Converted(name, value, [](const pybind11::object& given) { return given.cast<T>(); });
  }

  pybind11::dict given_;
  std::string owner_, noun_;
  std::set<std::string> known_;
};

}  // namespace llmi
