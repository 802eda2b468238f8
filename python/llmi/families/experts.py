"""Layers of experts: which layers have them, how many, and how their tensors are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from llmi.families.config import Config
from llmi.families.dense import MAX_LAYERS, Style, Tensors
from llmi.families.layers import FULL, SLIDING, kinds_of
from llmi.families.spec import LinearSpec, MlpSpec, ModelSpec, MoeSpec, RouterSpec, RowOrder, TensorBinding

#: Names by role in config.json's files, as most families have them; {expert} stands for an expert's number.
HF_EXPERTS: Final = {
    "router": "mlp.gate",
    "expert_gate": "mlp.experts.{expert}.gate_proj",
    "expert_up": "mlp.experts.{expert}.up_proj",
    "expert_down": "mlp.experts.{expert}.down_proj",
}
#: As Mixtral has them.
BLOCK_SPARSE: Final = {
    "router": "block_sparse_moe.gate",
    "expert_gate": "block_sparse_moe.experts.{expert}.w1",
    "expert_up": "block_sparse_moe.experts.{expert}.w3",
    "expert_down": "block_sparse_moe.experts.{expert}.w2",
}
_GGUF_EXPERTS: Final = {
    "router": "ffn_gate_inp",
    "expert_gate": "ffn_gate_exps",
    "expert_up": "ffn_up_exps",
    "expert_down": "ffn_down_exps",
}
_GGUF_SHARED: Final = {"gate": "ffn_gate_shexp", "up": "ffn_up_shexp", "down": "ffn_down_shexp", "shared_gate": "ffn_gate_inp_shexp"}
MAX_SIZE: Final = 1 << 20
MAX_EXPERTS: Final = 2048  # of a layer; the largest published models have 512


class ExpertTensors:
    """Binds the tensors of a model's layers with experts.

    Parameters
    ----------
    tensors : Tensors
    names : mapping of str to str
        Names by role in config.json's files.
    shared : str
        What the shared expert's names begin with, in config.json's files.
    """

    def __init__(self, tensors: Tensors, names: Mapping[str, str], shared: str = "mlp.shared_experts") -> None:
        self.tensors, self.c = tensors, tensors.c
        self.names = _GGUF_EXPERTS if self.c.is_gguf else names
        parts = {role: f"{shared}.{role}_proj" for role in ("gate", "up", "down")} | {"shared_gate": f"{shared}_gate"}
        self.shared_names = _GGUF_SHARED if self.c.is_gguf else parts

    def stem(self, name: str, index: int) -> str:
        """A tensor's whole name without .weight or .bias."""
        return self.tensors.names["layer"].replace("{}", str(index)) + name

    def linear(self, name: str, index: int, order: RowOrder | None = None) -> LinearSpec:
        """Without a bias, but for those that a GGUF stores."""
        stem = self.stem(name, index)
        has_bias = self.c.is_gguf and stem + ".bias" in self.c.tensors
        bias = TensorBinding(stem + ".bias") if has_bias else TensorBinding()
        return LinearSpec(TensorBinding(stem + ".weight", order or RowOrder()), bias)

    def has_experts(self, index: int) -> bool:
        """Of a GGUF the stored tensors say which layers have experts."""
        return self.stem(_GGUF_EXPERTS["router"], index) + ".weight" in self.c.tensors

    def expert(self, index: int, size: int) -> MlpSpec:
        """A gated MLP: three tensors of all experts in a GGUF, three for each expert elsewhere."""
        return self._gated(index, size, [self.names[role] for role in ("expert_gate", "expert_up", "expert_down")])

    def _gated(self, index: int, size: int, names: Sequence[str]) -> MlpSpec:
        gate, up, down = (self.linear(name, index) for name in names)
        return MlpSpec(activation=self.tensors.activation, size=size, gate=gate, up=up, down=down)

    def fused(self, index: int, size: int, gate_up: str, down: str) -> MlpSpec:
        """Gate and up in one tensor, first all of gate's rows of an expert; of all experts, or of the shared one."""
        halves = (self.linear(gate_up, index, RowOrder(first, size, 2 * size)) for first in (0, size))
        return MlpSpec(activation=self.tensors.activation, size=size, gate=next(halves), up=next(halves), down=self.linear(down, index))

    def transposed(self, index: int, size: int) -> MlpSpec:
        """Two tensors of all experts, [experts, columns, rows]: gate's rows before up's, and down."""

        def linear(name: str, order: RowOrder) -> LinearSpec:
            return LinearSpec(TensorBinding(self.stem(f"mlp.experts.{name}_proj", index), order, transposed=True))

        gate, up = (linear("gate_up", RowOrder(first, size, 2 * size)) for first in (0, size))
        return MlpSpec(activation=self.tensors.activation, size=size, gate=gate, up=up, down=linear("down", RowOrder()))

    def shared(self, index: int, size: int) -> MlpSpec:
        """The shared expert, a gated MLP of this size; 0: there is none."""
        if size == 0:
            return MlpSpec()
        return self._gated(index, size, [self.shared_names[role] for role in ("gate", "up", "down")])

    def router(self, index: int, router: RouterSpec, choice_bias: str = "") -> RouterSpec:
        """The family's router with its tensors. choice_bias: config.json's name of the bias of the choice alone."""
        bias = TensorBinding()
        if choice_bias:
            bias = TensorBinding(self.stem("exp_probs_b.bias" if self.c.is_gguf else choice_bias, index))
        return RouterSpec(**{**vars(router), "linear": self.linear(self.names["router"], index), "choice_bias": bias})

    def set(self, index: int, moe: MoeSpec, shared: MlpSpec | None = None) -> None:
        """Gives a layer its experts, and the shared one if there is one."""
        layer = self.tensors.spec.layers[index]
        layer.moe, layer.mlp = moe, shared or MlpSpec()


def sizes_of(c: Config, size_key: str = "moe_intermediate_size") -> tuple[int, int, int]:
    """How many experts there are, how many a token takes, and the size of one, by its key in config.json."""
    number, used = c.positive("num_experts"), c.positive("num_experts_per_tok")
    if number > MAX_EXPERTS:
        c.refuse("num_experts", f"{c.name('num_experts')} = {number} is outside [1, {MAX_EXPERTS}]")
    if used > number:
        c.refuse("num_experts_per_tok", f"{c.name('num_experts_per_tok')} = {used}, but there are {number} experts")
    if c.is_gguf:
        size_key = "moe_intermediate_size" if c.has("moe_intermediate_size") else "intermediate_size"
    return number, used, c.positive(size_key)


def between(c: Config, key: str, default: int | None = None, most: int = MAX_LAYERS) -> int:
    """A number of layers or of experts that may be 0."""
    value = c.integer(key) if default is None else c.integer(key, default)
    if not 0 <= value <= most:
        c.refuse(key, f"{c.name(key)} = {value} is outside [0, {most}]")
    return value


def groups_of(c: Config, number: int) -> tuple[int, int]:
    """Groups of experts, and how many of them a token takes."""
    groups, used = c.positive("n_group", 1), c.positive("topk_group", 1)
    if number % groups or (groups > 1 and number // groups < 2):
        c.refuse("n_group", f"{c.name('n_group')} = {groups} does not divide the {number} experts into groups of 2 or more")
    if used > groups:
        c.refuse("topk_group", f"{c.name('topk_group')} = {used}, but there are {groups} groups")
    return groups, used


def grouped_sigmoids(c: Config, number: int, factor: float) -> RouterSpec:
    """DeepSeek V3's router: sigmoids, a bias for the choice, groups by the sum of their two best."""
    groups, used = groups_of(c, number)
    return RouterSpec(
        score="sigmoid",
        num_groups=groups,
        used_groups=used,
        group_score="top2",
        renormalise=c.boolean("norm_topk_prob", not c.is_gguf),
        sum_epsilon=1e-20,
        factor=factor,
    )


def use_mixtral_experts(c: Config, spec: ModelSpec, style: Style) -> None:
    """Mixtral's experts in every layer: the softmax's largest, renormalised."""
    number, used, size = sizes_of(c, "intermediate_size")
    experts = ExpertTensors(Tensors(c, style, spec), BLOCK_SPARSE)
    for index in range(len(spec.layers)):
        router = experts.router(index, RouterSpec(renormalise=True))
        experts.set(index, MoeSpec(number, used, router, experts.expert(index, size)))


def every_step(c: Config, number: int) -> Sequence[int]:
    """Qwen's layers with experts: each decoder_sparse_step-th, but for mlp_only_layers."""
    step, dense = c.positive("decoder_sparse_step", 1), c.find("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        c.refuse("mlp_only_layers", "field 'mlp_only_layers' is not an array of integers")
    return [index for index in range(number) if (index + 1) % step == 0 and index not in dense]


def no_windows(c: Config, spec: ModelSpec) -> None:
    """Libraries do not agree which layers Qwen's windows are in where there are experts; no published file has them."""
    if c.is_gguf:
        return
    if c.boolean("use_sliding_window", False):
        c.unsupported("use_sliding_window", "use_sliding_window: true of a model with experts, whose layers libraries do not agree on")
    c.find("sliding_window"), c.find("max_window_layers")  # switched off
    if SLIDING in kinds_of(c, spec, [FULL] * len(spec.layers)):
        c.unsupported("layer_types", f"layer_types holds '{SLIDING}' where use_sliding_window is off")
