"""What a model's files say of its vectors and scores: modules.json and its folders, GGUF's keys, and the class where these say nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NoReturn

from llmi import _core
from llmi.errors import ModelFileError, UnsupportedModelError, from_core
from llmi.families.headless import RANK
from llmi.models.input_file import is_there, read_json
from llmi.models.layout import WHOLE, open_input
from llmi.pooling import judge
from llmi.pooling.steps import ACTIVATIONS, KINDS, Dense, LayerNorm, Normalize, Step

if TYPE_CHECKING:
    import numpy as np

    from llmi.session import Session
else:
    from llmi.base.lazy_numpy import np

MODULES, TRANSFORMER, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
#: Names of poolings, as sentence-transformers' files have them.
_POOLINGS: Final = {
    "cls": "cls", "cls_token": "cls", "lasttoken": "last", "mean": "mean", "mean_tokens": "mean", "max": "max", "max_tokens": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len", "weightedmean": "weighted_mean", "weightedmean_tokens": "weighted_mean",
}  # fmt: skip
#: GGUF's pooling_type.
_GGUF_POOLINGS: Final = {1: "mean", 2: "cls", 3: "last"}
_SCORES: Final = "ForSequenceClassification"


@dataclasses.dataclass(frozen=True, slots=True)
class Tokens:
    """A reranker by two tokens (Qwen3-Reranker): the score is the probability of `yes`, of these two."""

    no: int
    yes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Classifier:
    """A reranker with a head: its steps behind the pooled vector; sigmoid: of the one label's score; is_judge: a pair stands in the prompt
    of Qwen3-Reranker."""

    steps: tuple[Step, ...]
    sigmoid: bool
    num_labels: int
    is_judge: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PoolingSettings:
    """How a model makes a vector of a text.

    Attributes
    ----------
    kind : str
        One of steps.KINDS.
    steps : tuple of Step
        Behind the pooling, in order.
    by_class : bool
        No file says it: it is what the class usually does.
    max_length : int or None
        The longest text in tokens, where it is below the model's own.
    lowercase : bool
        Texts are lowered first.
    prompts : mapping of str to str
        Texts in front of a text, by name.
    default_prompt : str or None
        The name of the one that is taken where none is named.
    counts_prompt : bool
        The prompt's tokens are pooled, too.
    scorer : Tokens, Classifier or None
        How it scores a pair of texts; None: by the cosine of their vectors.
    """

    kind: str
    steps: tuple[Step, ...] = (Normalize(),)
    by_class: bool = True
    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None
    counts_prompt: bool = True
    scorer: Tokens | Classifier | None = None

    def width(self, hidden_size: int) -> int:
        """Values of a vector."""
        widths = [step.num_outputs for step in self.steps if isinstance(step, Dense)]
        return widths[-1] if widths else hidden_size


def settings_of(llm: Session) -> PoolingSettings:
    """What the files of this model say. Raises ModelFileError or UnsupportedModelError that names the file and the key."""
    reader = _Reader(llm)
    path = llm._files.path
    if not path.is_dir():
        return reader.of_gguf()
    by_class = reader.of_class()
    modules = reader.of_modules(by_class) if is_there(path / MODULES) else by_class
    return reader.with_texts(modules)


class _Reader:
    def __init__(self, llm: Session) -> None:
        self.llm, self.path, self.spec = llm, llm._files.path, llm._spec
        self.config = "config.json" if self.path.is_dir() else ""  # the file that refusals name
        self.overrides: dict[str, Any] = json.loads(llm._engine_args.hf_overrides or "{}")

    def _refuse(self, name: str, key: str, problem: str, error: type[ModelFileError] = ModelFileError) -> NoReturn:
        raise error(f"{self.path / name}: {key}: {problem}", self.path / name, key)

    def _object(self, name: str) -> dict[str, Any]:
        value = read_json(self.path / name)
        if not isinstance(value, dict):
            self._refuse(name, name, "it is no JSON object")
        return value

    # --- config.json

    def of_class(self) -> PoolingSettings:
        """By the class alone: vLLM's rules."""
        config = {**self._object("config.json"), **self.overrides}
        kind = "last" if not self.spec.two_sided else "mean" if self.spec.family == "gemma3" else "cls"
        names = config.get("architectures")
        name = str(names[0]) if isinstance(names, list) and names else ""
        tokens = config.get("classifier_from_token")
        if tokens is not None:
            return PoolingSettings(kind, scorer=self._two_tokens(tokens))
        if not name.endswith(_SCORES):
            return PoolingSettings(kind)
        if config.get("classifier_pooling") == "mean":
            kind = "mean"
        return PoolingSettings(kind, scorer=self._classifier(config))

    def _two_tokens(self, tokens: object) -> Tokens:
        key = "classifier_from_token"
        if not isinstance(tokens, list) or len(tokens) != 2 or not all(isinstance(token, str) for token in tokens):
            self._refuse("config.json", key, f"{tokens!r:.80} is not [no, yes], the texts of two tokens")
        ids = [self.llm.tokenizer.encode(token, add_special_tokens=False) for token in tokens]
        for token, each in zip(tokens, ids, strict=True):
            if len(each) != 1:
                self._refuse("config.json", key, f"{token!r:.40} is {len(each)} tokens, not one")
        return Tokens(ids[0][0], ids[1][0])

    def _classifier(self, config: Mapping[str, Any]) -> Classifier:
        """The head of a class for scores, by the names of its tensors."""
        stems: tuple[tuple[str, str], ...]
        match self.spec.family:
            case "bert":
                stems = (("bert.pooler.dense", "tanh"), ("classifier", "identity"))
            case "xlm_roberta":
                stems = (("classifier.dense", "tanh"), ("classifier.out_proj", "identity"))
            case "modernbert":
                stems = (("head.dense", str(config.get("classifier_activation", "gelu"))), ("classifier", "identity"))
            case _:
                stems = (("score", "identity"),)
        steps: list[Step] = [self._dense(stem, activation) for stem, activation in stems]
        if self.spec.family == "modernbert":
            weight, bias = self._tensor("head.norm.weight"), self._tensor("head.norm.bias", needed=False)
            steps.insert(1, LayerNorm(weight, bias, float(config.get("norm_eps", 1e-5))))
        self._check_widths(steps, "config.json", self.llm.model_info.hidden_size)
        last = steps[-1]
        assert isinstance(last, Dense)
        inner = config.get("sentence_transformers")
        named = inner.get("activation_fn") if isinstance(inner, dict) else config.get("sbert_ce_default_activation_function")
        activation = "sigmoid" if named is None else self._activation("config.json", "activation_fn", named)
        if activation not in ("sigmoid", "identity"):
            self._refuse("config.json", "activation_fn", f"{named!r:.80} is not run (Sigmoid and Identity are)", UnsupportedModelError)
        return Classifier(tuple(steps), activation == "sigmoid", last.num_outputs)

    def _tensor(self, name: str, *, needed: bool = True) -> Any:
        if name not in self.llm.weights:
            if needed:
                self._refuse(self.config, name, "the head has no tensor of this name")
            return None
        return self.llm.weights[name].astype(np.float64)

    def _dense(self, stem: str, activation: str) -> Dense:
        if activation not in ACTIVATIONS:
            self._refuse(
                "config.json",
                "classifier_activation",
                f"{activation!r:.40} is not run ({', '.join(ACTIVATIONS)} are)",
                UnsupportedModelError,
            )
        weight = self._tensor(f"{stem}.weight")
        if weight.ndim != 2:
            self._refuse(self.config, f"{stem}.weight", f"its shape {weight.shape} is no matrix's")
        return Dense(np.ascontiguousarray(weight.T), self._tensor(f"{stem}.bias", needed=False), activation)

    def _check_widths(self, steps: list[Step], name: str, width: int) -> None:
        for step in steps:
            if isinstance(step, Dense):
                if step.num_inputs != width or (step.bias is not None and step.bias.shape != (step.num_outputs,)):
                    self._refuse(name, "in_features", f"a dense layer takes {step.num_inputs} values, and {width} come to it")
                width = step.num_outputs

    def _activation(self, name: str, key: str, value: object) -> str:
        known = str(value).rsplit(".", 1)[-1].lower()
        if not isinstance(value, str) or known not in ACTIVATIONS:
            self._refuse(name, key, f"{value!r:.80} is not run ({', '.join(ACTIVATIONS)} are)", UnsupportedModelError)
        return known

    # --- modules.json

    def of_modules(self, by_class: PoolingSettings) -> PoolingSettings:
        """By modules.json: a transformer, a pooling, then dense layers and normalisation in any order; or a transformer and LogitScore."""
        modules = read_json(self.path / MODULES)
        if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
            self._refuse(MODULES, MODULES, "it is no list of objects")
        kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
        places = [str(module.get("path") or "") for module in modules]
        if kinds.count("Transformer") != 1 or kinds[0] != "Transformer" or places[0] not in ("", "."):
            self._refuse(
                MODULES, "type", f"{kinds} is not one Transformer in the model's own folder, and what follows it", UnsupportedModelError
            )
        if kinds[1:] == ["LogitScore"]:
            return dataclasses.replace(by_class, scorer=self._logit_score(places[1]))
        if len(kinds) == 1:
            return by_class
        if kinds.count("Pooling") != 1 or kinds[1] != "Pooling":
            self._refuse(MODULES, "type", f"{kinds}: a Pooling must follow the Transformer, and only one", UnsupportedModelError)
        kind, counts_prompt = self._pooling(places[1])
        steps: list[Step] = []
        for module, place in zip(kinds[2:], places[2:], strict=True):
            if module == "Normalize":
                steps.append(Normalize())
            elif module == "Dense":
                steps.append(self._module(place))
            else:
                self._refuse(
                    MODULES, "type", f"the module {module!r:.60} is not run (Pooling, Dense and Normalize are)", UnsupportedModelError
                )
        self._check_widths(steps, MODULES, self.llm.model_info.hidden_size)
        return dataclasses.replace(by_class, kind=kind, steps=tuple(steps), by_class=False, counts_prompt=counts_prompt, scorer=None)

    def _place(self, place: str, file: str) -> str:
        """A file of a module's folder; the folder is below the model's."""
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts or not place:
            self._refuse(MODULES, "path", f"{place!r:.80} is no folder below the model's")
        return f"{place}/{file}"

    def _pooling(self, place: str) -> tuple[str, bool]:
        name = self._place(place, "config.json")
        config = self._object(name)
        mode = config.get("pooling_mode")
        modes = (
            [mode]
            if isinstance(mode, str)
            else mode
            if isinstance(mode, list)
            else [key.removeprefix("pooling_mode_") for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        )
        if len(modes) != 1:
            self._refuse(
                name, "pooling_mode", f"{modes} is not one kind of pooling (several side by side are not run)", UnsupportedModelError
            )
        if (kind := _POOLINGS.get(str(modes[0]))) is None:
            self._refuse(
                name, "pooling_mode", f"{modes[0]!r:.60} is no pooling that is known ({', '.join(KINDS)} are)", UnsupportedModelError
            )
        width = config.get("word_embedding_dimension", config.get("embedding_dimension"))
        if width != (hidden := self.llm.model_info.hidden_size):
            self._refuse(name, "word_embedding_dimension", f"it is {width!r:.40}, the model's hidden states have {hidden} values")
        return kind, config.get("include_prompt", True) is not False

    def _module(self, place: str) -> Dense:
        """A dense layer, in its folder."""
        name = self._place(place, "config.json")
        config = self._object(name)
        activation = self._activation(name, "activation_function", config.get("activation_function", "torch.nn.modules.activation.Tanh"))
        file = self.path / self._place(place, WHOLE)
        if not is_there(file):
            self._refuse(self._place(place, WHOLE), WHOLE, "it is missing: a dense layer's weights are read from safetensors alone")
        try:
            core = _core.ModelFiles(
                str(file.parent), [open_input(file, "safetensors")], open_input(file.parent / "config.json", "json"), None
            )
            names = {tensor.name for tensor in _core.model_tensors(core, "")}
            stem = next((stem for stem in ("linear.", "") if f"{stem}weight" in names), "linear.")
            weight = _core.tensor_values(core, "", f"{stem}weight").astype(np.float64)
            bias = _core.tensor_values(core, "", f"{stem}bias").astype(np.float64) if f"{stem}bias" in names else None
        except _core.CoreError as error:
            raise from_core(error, file) from None
        stated = (config.get("out_features"), config.get("in_features"))
        if weight.shape != stated:
            self._refuse(name, "in_features", f"[out_features, in_features] = {list(stated)}, and the weight is {list(weight.shape)}")
        if bool(config.get("bias", True)) != (bias is not None):
            self._refuse(name, "bias", f"it is {config.get('bias', True)}, and the file has {'a' if bias is not None else 'no'} bias")
        return Dense(np.ascontiguousarray(weight.T), bias, activation)

    def _logit_score(self, place: str) -> Tokens:
        """Qwen3-Reranker's layout: the tokens "no" and "yes"; others have other prompts."""
        name = self._place(place, "config.json")
        config = self._object(name)
        no, yes = config.get("false_token_id"), config.get("true_token_id")
        if self.spec.family != "qwen3" or self._text(no) != "no" or self._text(yes) != "yes":
            self._refuse(
                name,
                "true_token_id",
                f"{no} and {yes} are not Qwen3-Reranker's tokens no and yes, whose prompt is known",
                UnsupportedModelError,
            )
        assert isinstance(no, int) and isinstance(yes, int)
        return Tokens(no, yes)

    def _text(self, token: object) -> str | None:
        tokenizer = self.llm.tokenizer
        is_id = isinstance(token, int) and not isinstance(token, bool) and 0 <= token < tokenizer.vocab_size
        return tokenizer.decode([token]) if is_id else None  # type: ignore[list-item]

    def with_texts(self, settings: PoolingSettings) -> PoolingSettings:
        """The longest text and the prompts."""
        changes: dict[str, Any] = {}
        if is_there(self.path / TRANSFORMER):
            config = self._object(TRANSFORMER)
            length = config.get("max_seq_length")
            if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
                self._refuse(TRANSFORMER, "max_seq_length", f"{length!r:.40} is no number of tokens")
            changes |= {"max_length": length, "lowercase": config.get("do_lower_case") is True}
        if is_there(self.path / PROMPTS):
            config = self._object(PROMPTS)
            prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
            if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
                self._refuse(PROMPTS, "prompts", "it is no object of texts")
            if default is not None and default not in prompts:
                self._refuse(PROMPTS, "default_prompt_name", f"{default!r:.60} is none of the prompts {sorted(prompts)}")
            changes |= {"prompts": prompts, "default_prompt": default}
        return dataclasses.replace(settings, **changes)

    # --- GGUF

    def of_gguf(self) -> PoolingSettings:
        """By pooling_type; llama.cpp's vectors are normalised."""
        fields = _core.model_fields(self.llm._files.core) or {}
        name = str(fields.get("general.architecture"))
        key = f"{name}.pooling_type"
        number = fields.get(key)
        default = "last" if not self.spec.two_sided else "mean" if self.spec.family == "gemma3" else "cls"
        if number == RANK or (number in (None, 0) and "cls.output.weight" in self.llm.weights):
            return self._gguf_reranker(name, fields, default)
        if number in (None, 0):
            return PoolingSettings(default)
        kind = _GGUF_POOLINGS.get(number) if isinstance(number, int) else None
        if kind is None:
            self._refuse("", key, f"{number!r:.40} is not run (1 mean, 2 first, 3 last, 4 rank are)", UnsupportedModelError)
        dense = [self._gguf_dense(stem) for stem in ("dense_2", "dense_3") if f"{stem}.weight" in self.llm.weights]
        steps: list[Step] = [*dense, Normalize()]
        self._check_widths(steps, "", self.llm.model_info.hidden_size)
        return PoolingSettings(kind, tuple(steps), by_class=False)

    def _gguf_reranker(self, name: str, fields: Mapping[str, Any], kind: str) -> PoolingSettings:
        """A head of one label behind its dense layer, or Qwen3-Reranker's rows of "yes" and "no", whose difference decides."""
        if self.spec.family == "qwen3":
            labels, prompt = fields.get(f"{name}.classifier.output_labels"), self.llm.tokenizer._loaded.chat_templates.get("rerank")
            if labels != ["yes", "no"]:
                self._refuse("", f"{name}.classifier.output_labels", f"{labels!r:.80} is not ['yes', 'no']", UnsupportedModelError)
            if prompt is not None and prompt != judge.BEFORE + judge.pair("{query}", "{document}") + judge.BEHIND:
                self._refuse("", "tokenizer.chat_template.rerank", "it is another prompt than Qwen3-Reranker's", UnsupportedModelError)
            yes, no = self._tensor("cls.output.weight")
            return PoolingSettings(kind, scorer=Classifier((Dense((yes - no)[:, None], None),), True, 1, is_judge=True))
        if "cls.weight" not in self.llm.weights:
            problem = "the file has no dense layer in front of the score, which BERT's head needs: take the model's folder"
            self._refuse("", "cls.weight", problem, UnsupportedModelError)
        steps: list[Step] = [self._dense("cls", "tanh"), self._dense("cls.output", "identity")]
        if self.spec.family == "modernbert":
            key = f"{name}.classifier.pooling_type"
            stated = fields.get(key)
            kind = _GGUF_POOLINGS.get(stated, "") if isinstance(stated, int) else ""
            if kind not in ("mean", "cls"):
                self._refuse("", key, f"{stated!r:.40} is neither 1 (mean) nor 2 (first)", UnsupportedModelError)
            eps = float(fields[f"{name}.attention.layer_norm_epsilon"])
            steps[:1] = [self._dense("cls", "gelu"), LayerNorm(self._tensor("cls.norm.weight"), None, eps)]
        self._check_widths(steps, "", self.llm.model_info.hidden_size)
        last = steps[-1]
        assert isinstance(last, Dense)
        return PoolingSettings(kind, scorer=Classifier(tuple(steps), True, last.num_outputs))

    def _gguf_dense(self, stem: str) -> Dense:
        return Dense(np.ascontiguousarray(self.llm.weights[f"{stem}.weight"].astype(np.float64).T), None)
