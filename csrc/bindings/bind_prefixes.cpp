// Saved blocks of prefixes, for lists of a folder.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "cache/saved_block.h"
#include "model/steering.h"

namespace py = pybind11;

namespace llmi {
namespace {

std::span<const uint8_t> SpanOf(const std::string& bytes) { return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}; }

py::dict DictOf(const SavedHeader& header) {
  py::dict dict;
  dict["identity"] = py::bytes(header.identity);
  dict["label"] = py::bytes(header.label);
  dict["parent"] = HexOf(header.parent);
  dict["key"] = HexOf(ChildKey(header.parent, header.tokens));
  dict["index"] = header.index;
  dict["num_tokens"] = header.tokens.size();
  return dict;
}

}  // namespace

void RegisterPrefixes(py::module_& module) {
  module.attr("MOST_SAVED_HEADER_BYTES") = kMostHeaderBytes;
  module.def(
      "saved_header",
      [](const py::bytes& bytes) -> std::optional<py::dict> {
        const std::string text = bytes;
        const std::optional<SavedHeader> header = ParseHeader(SpanOf(text));
        if (!header) return std::nullopt;
        return DictOf(*header);
      },
      py::arg("bytes"), "What the first bytes of a saved block say of it; None: they are no header.");
  module.def(
      "prefix_keys",
      [](const std::string& identity, const std::string& salt, const std::vector<int32_t>& token_ids, size_t block_size) {
        std::vector<std::string> keys;
        PrefixKey key = RootKey(identity, SaltWith(nullptr, {}, salt));
        for (size_t end = block_size; end <= token_ids.size(); end += block_size) {
          key = ChildKey(key, std::span(token_ids).subspan(end - block_size, block_size));
          keys.push_back(HexOf(key));
        }
        return keys;
      },
      py::arg("identity"), py::arg("salt"), py::arg("token_ids"), py::arg("block_size"),
      "The keys of a text's whole blocks, by which their files are named.");
  module.def(
      "saved_block_fault",
      [](const py::bytes& bytes) {
        const std::string text = bytes;
        switch (ParseBlock(SpanOf(text)).fault) {
          case SavedFault::kNone: return "";
          case SavedFault::kCut: return "cut";
          default: return "damaged";
        }
      },
      py::arg("bytes"), "What is wrong with the bytes of a whole saved block; empty if nothing is.");
}

}  // namespace llmi
