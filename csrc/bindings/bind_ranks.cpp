// The ranks of a model that several processes compute together.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/engine_options.h"
#include "bindings/gil.h"
#include "core/rank_group.h"
#include "engine/rank_worker.h"
#include "model/tensor_slots.h"

namespace py = pybind11;

namespace llmi {

namespace {

py::list PlanOf(const ModelSpec& spec, int num_ranks, const std::vector<double>& split, int num_stages) {
  const RankPlan first(spec, num_ranks, split, 0, num_stages);
  py::list ranks;
  for (int number = 0; number < num_ranks * num_stages; ++number) {
    const RankPlan plan = first.AtStage(number / num_ranks);
    const int rank = number % num_ranks;
    std::map<std::string, std::pair<int64_t, int64_t>> rows;  // by tensor: its rows, and those that the rank holds
    for (const TensorSlot& slot : TensorSlotsOf(spec)) {
      if (!slot.is_matrix()) continue;
      const int64_t of_one = slot.num_experts > 0 ? slot.padded_head_rows : slot.packed_rows();
      const int64_t held = plan.Rows(slot, rank).size();
      for (const std::string& name : slot.TensorNames()) {
        rows[name].first += of_one;
        rows[name].second += held;
      }
    }
    py::dict held;
    for (const auto& [name, counts] : rows) held[name.c_str()] = static_cast<double>(counts.second) / static_cast<double>(counts.first);
    py::list queries, keys;
    for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
      const bool held_here = plan.Holds(static_cast<int64_t>(layer));
      queries.append(held_here ? plan.QueryHeads(spec.layers[layer].attention, rank).size() : 0);
      keys.append(held_here ? plan.KvHeads(spec.layers[layer].attention, rank).size() : 0);
    }
    ranks.append(py::dict(py::arg("held") = held, py::arg("query_heads") = queries, py::arg("kv_heads") = keys,
                          py::arg("stage") = plan.stage(), py::arg("layers") = py::make_tuple(plan.Layers().begin, plan.Layers().end),
                          py::arg("hidden") = plan.Hidden(rank).size(), py::arg("vocabulary") = plan.Vocabulary(rank).size()));
  }
  return ranks;
}

}  // namespace

void RegisterRanks(py::module_& module) {
  py::class_<RankGroup, std::shared_ptr<RankGroup>>(module, "RankGroup")
      .def(py::init([](int num_ranks, bool spins, int64_t half_bytes) {
             return std::shared_ptr<RankGroup>(RankGroup::Make(num_ranks, spins, half_bytes));
           }),
           py::arg("num_ranks"), py::kw_only(), py::arg("spins"), py::arg("half_bytes") = RankGroup::kHalfBytes,
           "The shared memory of as many ranks, of which this process is rank 0.")
      .def_static(
          "join", [](int descriptor, int rank) { return std::shared_ptr<RankGroup>(RankGroup::Join(descriptor, rank)); },
          py::arg("descriptor"), py::arg("rank"), "Another rank, by rank 0's descriptor.")
      .def_static(
          "over_mpi",
          [](uintptr_t library, uintptr_t communicator, uintptr_t byte, int rank, const std::vector<std::pair<int, std::string>>& members,
             bool spins) {
            std::vector<RankGroup::Member> known;
            for (const auto& [pid, host] : members) known.push_back({pid, host});
            const MpiHandles handles = {reinterpret_cast<void*>(library), reinterpret_cast<void*>(communicator),
                                        reinterpret_cast<void*>(byte)};
            return std::shared_ptr<RankGroup>(RankGroup::OverMpi(handles, rank, known, spins));
          },
          py::arg("library"), py::arg("communicator"), py::arg("byte"), py::arg("rank"), py::arg("members"), py::kw_only(),
          py::arg("spins"), "A rank among those of several machines; members: process and host of each. The handles are MPI's.")
      .def("settle", &RankGroup::Settle, py::call_guard<py::gil_scoped_release>(),
           "After `leave`: waits for the others; False: MPI cannot be ended.")
      .def_property_readonly("descriptor", &RankGroup::descriptor)
      .def_property_readonly("size", &RankGroup::size)
      .def_property_readonly(
          "traffic",
          [](const RankGroup& group) {
            const RankGroup::Traffic& traffic = group.traffic();
            return py::dict(py::arg("num_gathers") = traffic.num_gathers, py::arg("gathered_bytes") = traffic.gathered_bytes,
                            py::arg("num_tells") = traffic.num_tells, py::arg("told_bytes") = traffic.told_bytes);
          },
          "What this rank has taken part in so far.")
      .def("watch", &RankGroup::Watch, py::arg("rank"), py::arg("pid"), "Notices the end of this process, which is to be that rank.")
      .def_static("prepare", &RankGroup::Prepare, py::arg("num_ranks"), py::kw_only(), py::arg("spins"),
                  "The descriptor of a group's memory, whose rank 0 joins like the others; the caller closes it.")
      .def("link", &RankGroup::Link, py::arg("incoming"), py::arg("outgoing"),
           "Makes this rank the first of a stage, between sockets of the stages before and behind; takes both descriptors.")
      .def("watch_stage", &RankGroup::WatchStage, py::arg("rank"), py::arg("pid"), "Notices the end of a process of another stage.")
      .def("leave", &RankGroup::Leave, py::arg("reason"), "Ends the group, for this reason; empty: as it should end.")
      .def(
          "gather",
          [](RankGroup& group, const py::bytearray& buffer, const std::vector<std::vector<int64_t>>& blocks, bool to_first) {
            std::vector<RankGroup::Block> given;
            for (const std::vector<int64_t>& block : blocks) {
              CheckArgument(block.size() == 5, "a block is owner, offset, row_bytes, num_rows, stride");
              given.push_back({static_cast<int>(block[0]), block[1], block[2], block[3], block[4]});
              const int64_t end = block[1] + (block[3] - 1) * block[4] + block[2];
              CheckArgument(block[1] >= 0 && block[4] >= 0 && end <= static_cast<int64_t>(buffer.size()), "a block ends behind the buffer");
            }
            char* data = PyByteArray_AS_STRING(buffer.ptr());
            const GilReleased release;
            group.Gather(data, given, to_first);
          },
          py::arg("buffer"), py::arg("blocks"), py::arg("to_first") = false,
          "Makes a bytearray whole; blocks: (owner, offset, row_bytes, num_rows, stride).");
  module.def(
      "check_ranks",
      [](const std::string& spec, const std::string& path, int num_ranks, const std::vector<double>& split, int num_stages) {
        return PlanOf(ParseSpec(spec, path), num_ranks, split, num_stages);
      },
      py::arg("spec"), py::arg("path"), py::arg("num_ranks"), py::arg("split"), py::arg("num_stages") = 1,
      "What each rank of these shares holds: a dict a rank. Raises CoreError if they cannot compute the model.");
  module.def(
      "serve_rank",
      [](const ModelFiles& files, const py::kwargs& given) {
        const EngineOptions options = EngineOptionsOf(given);
        CheckArgument(options.ranks != nullptr, "serve_rank: of which ranks?");
        const GilReleased release;
        ServeRank(files, options);
      },
      py::arg("files"), "Computes as the rank of `ranks` until rank 0 has gone. Further arguments: the engine's options by name.");
}

}  // namespace llmi
