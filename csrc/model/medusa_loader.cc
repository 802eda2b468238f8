// Loads Medusa heads from their file.
#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "model/drafter_tensors.h"
#include "model/medusa.h"

namespace llmi {
namespace {

class MedusaLoader {
 public:
  MedusaLoader(const KernelContext& context, const MedusaFile& file, const Decoder& target)
      : context_(context), file_(file), path_(file.files->path()), tensors_(file.files->tensors()), target_(target) {}

  std::vector<MedusaHead> Load() {
    CheckArgument(!file_.blocks.empty() && file_.blocks.size() == file_.vocabularies.size(), "each Medusa head has a list of blocks");
    const bool is_own = !file_.vocabularies[0].empty();
    CheckArgument(std::ranges::all_of(file_.vocabularies, [&](const std::string& name) { return name.empty() != is_own; }),
                  "all Medusa heads have a matrix over the vocabulary, or none has");
    std::vector<MedusaHead> heads;
    for (size_t k = 0; k < file_.blocks.size(); ++k) {
      MedusaHead& head = heads.emplace_back();
      for (const std::string& name : file_.blocks[k]) head.blocks.push_back(Block(name));
      if (!file_.vocabularies[k].empty()) head.vocabulary = Vocabulary(file_.vocabularies[k]);
    }
    for (const std::string& name : file_.inert) tensors_.Find(name);
    RefuseUnreadDraft(path_, tensors_, "Medusa heads");
    return heads;
  }

 private:
  LinearWeights Block(const std::string& name) {
    const auto hidden = static_cast<uint64_t>(target_.spec().hidden_size);
    LinearWeights block;
    block.matrix = {context_, FoundTensor(path_, tensors_, name + ".weight", {hidden, hidden}),
                    FormatLike(target_.weights().layers[0].query_matrix())};
    block.bias = {context_, FloatVector(FoundTensor(path_, tensors_, name + ".bias", {hidden}))};
    return block;
  }

  PackedMatrix Vocabulary(const std::string& name) {
    const ModelSpec& spec = target_.spec();
    const TensorView& view =
        FoundTensor(path_, tensors_, name, {static_cast<uint64_t>(spec.vocab_size), static_cast<uint64_t>(spec.hidden_size)});
    const WeightFormat format = FormatLike(spec.tied_head() ? target_.weights().embedding : target_.weights().head);
    const std::vector<int32_t>& listed = file_.shortlist;
    const RowMap rows = {static_cast<int64_t>(listed.size()), [&](int64_t row) { return listed[static_cast<size_t>(row)]; }};
    return {context_, view, format, listed.empty() ? nullptr : &rows};
  }

  const KernelContext& context_;
  const MedusaFile& file_;
  const std::string path_;
  const RecordedTensors tensors_;
  const Decoder& target_;
};

}  // namespace

std::unique_ptr<MedusaHeads> LoadMedusa(const KernelContext& context, const MedusaFile& file, const ModelFiles& target_files,
                                        const Decoder& target) {
  std::vector<MedusaHead> heads = MedusaLoader(context, file, target).Load();
  std::vector<int32_t> shortlist = file.shortlist;
  PackedMatrix rows;
  if (file.vocabularies[0].empty() && !shortlist.empty()) {
    rows = HeadRows(context, shortlist, target_files, target);
    if (rows.num_bytes() == 0) shortlist.clear();  // the target's head has no plain rows: all of it is read
  }
  return std::make_unique<MedusaHeads>(std::move(heads), std::move(shortlist), std::move(rows));
}

}  // namespace llmi
