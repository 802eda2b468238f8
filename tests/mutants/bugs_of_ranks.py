"""Planted bugs in what several ranks compute together."""

from __future__ import annotations

from mutant import Mutant

BUGS = [
    Mutant(
        "columns of the ranks before stay on their devices",
        "csrc/kernels/cuda",
        "Gather",
        "if (block.owner != group_->rank())",
        "if (block.owner > group_->rank())",
        "engine/test_ranks_on_devices.py",
    ),
    Mutant(
        "a slice off by a tile",
        "csrc/model",
        "Rows",
        "case RowRule::kHidden: return Hidden(rank);",
        "case RowRule::kHidden: return {Hidden(rank).begin - 16 * (rank > 0), Hidden(rank).end - 16 * (rank > 0)};",
        "engine/test_ranks.py",
    ),
    Mutant(
        "a neighbour's biases",
        "csrc/model",
        "LinearWeights",
        "bias.data() + matrix.first_row()",
        "bias.data()",
        "engine/test_ranks.py",
    ),
    Mutant(
        "the stream is not gathered",
        "csrc/model",
        "AddToStream",
        "if (pass.ranks != nullptr) pass.ranks->GatherHidden(out, num_rows, hidden);",
        "",
        "engine/test_ranks.py",
    ),
    Mutant(
        "what the gather before left",
        "csrc/core",
        "GatherPiece",
        "WaitFor(owner, number_);",
        "WaitFor(owner, number_ - 1);",
        "engine/test_ranks.py",
    ),
    Mutant(
        "pages of two heads exchanged",
        "csrc/model",
        "PieceArgs",
        "(piece.keys.begin - ranks.KvHeads(attention).begin)",
        "(ranks.KvHeads(attention).end - piece.keys.end)",
        "engine/test_tensor_parallel.py",
    ),
    Mutant(
        "norms of the first heads",
        "csrc/model",
        "TakeOwnWeights",
        "if (norm.weight != nullptr) norm.weight += heads.begin * norm.size;",
        "",
        "engine/test_ranks.py",
    ),
    Mutant(
        "a page copy is not passed on",
        "csrc/cache",
        "TryReserveSlots",
        "if (notes_events_) events_.push_back({-1, 0, shared, page, 0, 0});",
        "",
        "engine/test_tensor_parallel.py",
    ),
    Mutant(
        "a moved slot is not passed on",
        "csrc/cache",
        "MoveSlot",
        "if (notes_events_) NoteMove(sequence, from, to);",
        "",
        "engine/test_tensor_parallel.py",
    ),
    Mutant(
        "a token at a border of the vocabulary",
        "csrc/model",
        "VocabularyOwner",
        "while (Vocabulary(rank).end <= token_id) ++rank;",
        "while (Vocabulary(rank).end < token_id) ++rank;",
        "engine/test_tensor_parallel.py",
    ),
    Mutant(
        "ranks with other weights",
        "csrc/engine",
        "CheckIdentities",
        "if (std::memcmp(facts[rank].identity, facts[0].identity, sizeof facts[0].identity) == 0) continue;",
        "continue;",
        "engine/test_tensor_parallel.py",
    ),
    Mutant(
        "the first heads' matrices of a latent",
        "csrc/model",
        "MultiplyHeads",
        "part.weights.data += span.begin * …;",
        "",
        "engine/test_ranks.py",
    ),
]
