"""Several ranks compute the bits of one: each part of a spec, any number of ranks, even and uneven shares."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from llmi import _core
from rank_threads import decoder_on_ranks
from spec_models import LATENT_PARTS, MIXERS, PARTS, TinyModel, mixture

T = _core.testing
TOKENS = [(position * 37 + 11) % 101 for position in range(40)]


def logits_of(decoder: Any) -> list[Any]:
    """A prompt in two pieces, a step, a tree and a second sequence, with hidden rows."""
    one, two = decoder.new_sequence(), decoder.new_sequence()
    found = []
    for pieces in (
        [(one, TOKENS[:23], None)],
        [(one, TOKENS[23:30], None), (two, TOKENS[5:22], None)],
        [(one, TOKENS[30:31], None)],
        [(one, TOKENS[31:36], [-1, 0, 0, 1, -1]), (two, TOKENS[:1], None)],
        [(one, TOKENS[31:32], None)],
    ):
        logits, taps = decoder.forward(pieces, [0, 1, 2])
        found += [logits, *taps]
    found.append(decoder.forward_allowed([(two, [7], None)], [[3, 9, 50]]))
    return found


def check(model: TinyModel, path: Path, count: int, split: list[float] | None, half_bytes: int = 1 << 16, **options: Any) -> None:
    donors = model.choices["kv_donors"]
    other_heads = any(donor >= 0 and model.sizes_of(layer)[0] != model.sizes_of(donor)[0] for layer, donor in enumerate(donors))
    if model.choices["layer_embedding"] or other_heads:  # there is no rule
        with pytest.raises(_core.CoreError, match=r"layer_embedding|load the model on one rank") as raised:
            _core.check_ranks(model.json(), str(path), count, split or [])
        assert raised.value.kind == "unsupported_model"
        return
    files = _core.ModelFiles(str(path))
    alone = logits_of(T.Decoder(files, model.json(), num_threads=1, **options))
    with decoder_on_ranks(files, model.json(), count, split, half_bytes, **options) as decoder:
        for expected, got in zip(alone, logits_of(decoder), strict=True):
            assert_same_bits(got, expected, masked="forward_allowed")


def random_split(rng: random.Random, count: int) -> list[float] | None:
    if rng.random() < 0.3:
        return None
    cuts = [0.0, *sorted(rng.random() for _ in range(count - 1)), 1.0]
    return [max(high - low, 1e-9) for low, high in itertools.pairwise(cuts)]


@pytest.mark.parametrize("name", [*PARTS, *LATENT_PARTS])
def test_each_part(name: str, tmp_path: Path) -> None:
    model = TinyModel((PARTS | LATENT_PARTS)[name])
    rng = random.Random(name)
    count = rng.choice([2, 3, 4])
    check(
        model, model.save(tmp_path), count, random_split(rng, count), kv_dtype=rng.choice(["float16", "float32", "int8", "bfloat16", "fp8"])
    )


@pytest.mark.parametrize(("count", "split"), [(2, None), (2, [0.7, 0.3]), (4, None)])
@pytest.mark.parametrize("mixer", [*MIXERS, "groups by turns", "one group"])
def test_mixers(mixer: str, count: int, split: list[float] | None, tmp_path: Path) -> None:
    """A rank has some heads of a recurrence, or none; of a short convolution all of it."""
    model = TinyModel(PARTS["window"])
    model.mix(0, {"groups by turns": "gated_delta", "one group": "mamba2"}.get(mixer, mixer), groups=1 if mixer == "one group" else 2)
    if mixer == "groups by turns":
        model.spec["layers"][0]["recurrence"]["tiled_groups"] = True
    check(model, model.save(tmp_path), count, split)


@pytest.mark.parametrize("seed", range(12))
def test_mixtures(seed: int, tmp_path: Path) -> None:
    model = TinyModel(mixture(seed), seed)
    rng = random.Random(seed)
    count = rng.choice([2, 3, 4])
    check(model, model.save(tmp_path), count, random_split(rng, count), dtype=rng.choice(["auto", "float16", "bfloat16"]), half_bytes=192)


def test_a_gather_of_many_pieces() -> None:
    """Blocks of all owners, in rows and apart, over halves that are smaller than any of them."""
    count, rows, width = 3, 7, 50
    group = _core.RankGroup(count, spins=False, half_bytes=64)
    groups = [group, *(_core.RankGroup.join(group.descriptor, rank) for rank in (1, 2))]
    borders = [0, 11, 11, 50]  # rank 1 has nothing
    blocks = [(rank, borders[rank], borders[rank + 1] - borders[rank], rows, width) for rank in range(count)]
    whole = np.arange(rows * width, dtype=np.uint8).reshape(rows, width)
    buffers = [bytearray(rows * width) for _ in range(count)]
    for rank, buffer in enumerate(buffers):
        own = np.frombuffer(buffer, np.uint8).reshape(rows, width)
        own[:, borders[rank] : borders[rank + 1]] = whole[:, borders[rank] : borders[rank + 1]]
        del own
    threads = [threading.Thread(target=each.gather, args=(buffer, blocks)) for each, buffer in zip(groups, buffers, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(bytes(buffer) == whole.tobytes() for buffer in buffers)


@pytest.mark.parametrize("mixer", [None, "gated_delta"])
def test_calls_that_were_changed(mixer: str | None) -> None:
    """A rank takes a call of the right form alone: bytes that were cut, added or changed are read, or refused by name."""
    model = TinyModel(PARTS["window"])
    if mixer is not None:
        model.mix(0, mixer)
    with tempfile.TemporaryDirectory() as folder:
        decoder = T.Decoder(_core.ModelFiles(str(model.save(Path(folder)))), model.json(), num_pages=64)
        sequence = decoder.new_sequence()
        batch = decoder.batch_bytes([(sequence, TOKENS[:5], None)], [1])
    event = np.array([0, 0, 3, 4, 1, 2], np.int32).tobytes()
    embed = np.float32(1.5).tobytes() + np.array([3, 100], np.int32).tobytes()
    header = np.array([1 + (mixer is not None), 1], np.uint64).tobytes()
    moved = b"" if mixer is None else np.array([-2, 0, 1, 2, 3, 4], np.int32).tobytes()  # a row of a log of states
    calls = [(0, header + event + moved + batch), (1, bytes(64 * 4 * 2)), (2, embed)]
    rng = random.Random(7)
    refused = 0
    for call, sound in calls:
        decoder.read_call(call, sound)
        for _ in range(700):
            changed = bytearray(sound)
            for _ in range(rng.choice([1, 1, 3])):
                place = rng.randrange(len(changed))
                changed[place] = rng.choice([0, 1, 127, 128, 255, changed[place] ^ 1 << rng.randrange(8)])
            if rng.random() < 0.2:
                changed = changed[: rng.randrange(len(changed))] + rng.randbytes(rng.choice([0, 1, 8]))
            try:
                decoder.read_call(call, bytes(changed))
            except _core.CoreError as error:
                assert error.kind == "invalid_argument", error
                refused += 1
    assert refused > 700


@pytest.mark.parametrize("place", range(0, 40, 4))
def test_memory_that_is_no_group(place: int) -> None:
    """The header: magic, version, byte order, ranks, spins, half, size."""
    group = _core.RankGroup(2, spins=False, half_bytes=64)
    whole = bytearray(os.pread(group.descriptor, 1 << 16, 0))
    whole[place] ^= 0x42
    with tempfile.TemporaryFile() as file:
        file.write(whole)
        file.flush()
        if place == 20:  # whether waits spin is no matter of form
            return
        with pytest.raises(_core.CoreError, match="ranks: "):
            _core.RankGroup.join(file.fileno(), 1)


def test_who_may_join() -> None:
    group = _core.RankGroup(2, spins=False)
    for rank in (0, 2, -1):
        with pytest.raises(_core.CoreError, match="number"):
            _core.RankGroup.join(group.descriptor, rank)
    other = _core.RankGroup.join(group.descriptor, 1)
    with pytest.raises(_core.CoreError, match="taken"):
        _core.RankGroup.join(group.descriptor, 1)
    with pytest.raises(_core.CoreError, match="1 to 256"):
        _core.RankGroup(257, spins=False)
    other.leave("it went")
    with pytest.raises(_core.CoreError, match=r"rank 1 \(.*it went") as raised:
        group.gather(bytearray(4), [(1, 0, 4, 1, 0)])
    assert raised.value.kind == "worker_died" and raised.value.field == f"1 {os.getpid()}"


def test_ranks_that_gather_different_things() -> None:
    group = _core.RankGroup(2, spins=False)
    other = _core.RankGroup.join(group.descriptor, 1)
    thread = threading.Thread(target=lambda: pytest.raises(_core.CoreError, other.gather, bytearray(8), [(0, 0, 4, 1, 0), (1, 4, 4, 1, 0)]))
    thread.start()
    with pytest.raises(_core.CoreError, match=r"out of step|rank 1"):
        group.gather(bytearray(8), [(0, 0, 4, 1, 0), (1, 4, 2, 1, 0)])
        group.gather(bytearray(8), [(1, 0, 4, 1, 0)])
    thread.join()


def test_a_matrix_without_a_rule_is_refused() -> None:
    """By its path in the spec; what each rank holds of the others adds up to all of it."""
    with pytest.raises(_core.CoreError, match="4 tiles of 16"):
        _core.check_ranks(TinyModel(PARTS["window"]).json(), "there", 5, [])
    _core.check_ranks(TinyModel(PARTS["experts"]).json(), "there", 4, [])
