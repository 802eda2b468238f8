"""Planted bugs of training (python/llmi/training)."""

from __future__ import annotations

from mutant import Mutant

PARTS = "tests/training/test_training_parts.py"
LAYER = "tests/training/test_training_layer.py"
HEADS = "tests/training/test_train_heads.py"


def planted(name: str, file: str, anchor: str, old: str, new: str, tests: str) -> Mutant:
    return Mutant("training", name, f"python/llmi/training/{file}", anchor, old, new, tests)


TRAINING = [
    planted("drafted rows turned by depth 0's angle", "layer.py", "forward", "[inputs] + depth", "[inputs]", LAYER),
    planted(
        "the own key of a drafted row is not seen",
        "layer.py",
        "_attend",
        "self._keys[depth], out=scores",
        "self._keys[0], out=scores",
        LAYER,
    ),
    planted("a part sees its neighbour", "layer.py", "grid_of", "same & (", "(", LAYER),
    planted("a draft's gradient does not reach the one before", "layer.py", "backward", "+= later[1]", "+= 0 * later[1]", LAYER),
    planted(
        "keys of depth 0 get no gradient from drafts",
        "layer.py",
        "_backward_attention",
        "d_keys[0] += true",
        "d_keys[depth] += true",
        LAYER,
    ),
    planted(
        "the norm's mean is left out going back",
        "layer.py",
        "_backward_outputs",
        "normal * np.mean(d_normal * normal, axis=1, keepdims=True)",
        "0",
        LAYER,
    ),
    planted("the rest of a law has no gradient", "losses.py", "divergence", "draft *= 1.0 - rest / rest_of_draft", "pass", PARTS),
    planted("a cap is not undone", "losses.py", "backward", "d_logits *= 1 - (logits / self.cap) ** 2", "pass", PARTS),
    planted("moments are not corrected", "optimizer.py", "update", "1 - BETAS[0] ** self.step", "1.0", PARTS),
    planted("laws one position late", "eagle.py", "places_of", "data.law_of[at + 1] >= 0", "data.law_of[at] >= 0", PARTS),
    planted("noise that did not draw the text", "acceptance.py", "_noise", "below[on, following[on]] = winner[on]", "pass", PARTS),
    planted("noise with two winners", "acceptance.py", "_noise", "-np.logaddexp(-winner[:, None], -fresh)", "fresh", PARTS),
    planted("scales in the wrong half of a byte", "packed.py", "pack", "codes[..., 16:] << 4", "codes[..., 16:] << 3", PARTS),
    planted("the gain is left out of the file", "eagle.py", "tensors", "np.float32(self.gain)", "np.float32(1.0)", HEADS),
    planted("a checkpoint without the second moment", "run.py", "restore", 'tensors["second"]', "0.0", HEADS),
    planted("a resumed run reads from the first batch", "run.py", "run", "range(self.optimizer.step)", "range(0)", HEADS),
    planted("every prompt's answer is greedy", "text.py", "_answers", "float(is_warm(number))", "0.0", HEADS),
]
