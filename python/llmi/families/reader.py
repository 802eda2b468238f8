"""From the files of a model to its spec: the overrides, the family's card, and the rule that every key is read, known to change nothing, or
refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from llmi import _core
from llmi.errors import InvalidParamsError, LlmiError, ModelFileError, UnsupportedModelError, from_core
from llmi.families.config import Config, Shape, Value
from llmi.families.inert import CONFIG_JSON, GGUF, TOWERS, Rule, inert_reason, matches
from llmi.families.names import rename
from llmi.families.quantization import KEYS, description_of
from llmi.families.registry import Card, cards, of_config_json, refuse_unknown, run_card
from llmi.families.spec import ModelSpec
from llmi.families.stated import stated_reason

#: Models of images and text whose prompt is a prefix that is read in both directions.
_BOTH_WAYS: Final = ("PaliGemmaForConditionalGeneration", "ColPaliForRetrieval")
#: Why a key at a value changes nothing; None if it may change something.
Reason: TypeAlias = Callable[[str, Value], str | None]
_MOST_NAMED: Final = 8  # names in one message
_MAX_CONFIG_BYTES: Final = 1 << 22
_ARGUMENT: Final = "hf_overrides"
#: Names of tensors of the other models, in files where the text model is one among others.
_TOWER_TENSORS: Final = (
    "*vision_*",
    "*visual.*",
    "*audio_*",
    "*multi_modal_projector.*",
    "*embed_vision.*",
    "*embed_audio.*",
    "*aligner.*",
    "*connector.*",
    "*image_newline",
)


def spec_of(files: _core.ModelFiles, overrides: str = "", max_model_len: int | None = None) -> ModelSpec:
    """The spec of the model in these files, by its family's card.

    Parameters
    ----------
    files : ModelFiles
    overrides : str
        hf_overrides as JSON: a value replaces the file's whole value, and null removes the key; keys are those of config.json or of GGUF
        metadata. A key may also be a name of tensors, in which * stands for any text: null leaves these out.
    max_model_len : int, optional
        The context of the engine, which chooses among a model's rotary tables; the model's own length, if it is not given.

    Returns
    -------
    ModelSpec

    Raises
    ------
    ModelFileError, UnsupportedModelError
        A key is missing, wrong or not understood; no card knows the architecture; or the card failed, and the error names it.
    InvalidParamsError
        An override changes nothing.

    Examples
    --------
    >>> spec_of(open_model(path).core).digest()[:12]  # doctest: +SKIP
    '3f1c0a9be2d4'
    """
    try:
        fields = _core.model_fields(files)
        text = None if files.config is None else files.config.read(0, _MAX_CONFIG_BYTES + 1)
    except _core.CoreError as error:
        raise from_core(error, files.path) from None
    changes = json.loads(overrides) if overrides else {}
    if fields is not None:
        return Reading(fields, files.path, _tensors(files), changes, max_model_len).of_gguf()
    assert files.config is not None and text is not None
    source = files.config.path
    values = _config_json(text, source)
    quantization = description_of(values | changes, source, files)
    spec = Reading(values, source, _tensors(files, quantization), changes, max_model_len).of_config_json()
    spec.quantization = quantization
    return spec


def _tensors(files: _core.ModelFiles, quantization: str = "") -> dict[str, Shape]:
    """Shapes by name; each quantised matrix of a checkpoint is one tensor."""
    try:
        return {tensor.name: tuple(tensor.shape) for tensor in _core.model_tensors(files, quantization)}
    except _core.CoreError as error:
        raise from_core(error, files.path) from None


def _config_json(text: bytes, source: str) -> dict[str, Value]:
    if len(text) > _MAX_CONFIG_BYTES:
        raise ModelFileError(f"{source}: the file has more than {_MAX_CONFIG_BYTES:,} bytes", source, "config.json")
    try:
        decoded = text.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{source}: not valid UTF-8 (byte {error.start})", source, "json") from None
    try:
        values = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ModelFileError(f"{source}: not valid JSON: it is nested too deeply", source, "json") from None
    except ValueError as error:
        raise ModelFileError(f"{source}: not valid JSON: {error}", source, "json") from None
    if not isinstance(values, dict):
        raise ModelFileError(f"{source}: it is not an object", source, "config.json")
    return values


def _unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    """Two readers may take another one of two equal keys."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r:.60} stands twice")
    return values


def _refuse_constant(name: str) -> Value:
    raise ValueError(f"{name} is no JSON number")


class Reading:
    """One file's keys and tensors on their way to a spec."""

    def __init__(
        self,
        values: Mapping[str, Value],
        source: str,
        tensors: Mapping[str, Shape],
        changes: Mapping[str, Value],
        max_model_len: int | None,
    ) -> None:
        self.values, self.source, self.tensors, self.changes = dict(values), source, tensors, changes
        self.max_model_len = max_model_len
        self.patterns: list[str] = []  # of tensors that the user leaves out
        for key, value in changes.items():
            self._change(key, value)

    def _change(self, key: str, value: Value) -> None:
        """One override: of a key, of a key inside objects ("rope_scaling.factor"), or of tensors that are left out."""
        holder, name = self.values, key
        while name not in holder and isinstance(inner := holder.get(name.split(".")[0]), dict):
            first, name = name.split(".", 1)
            inner = holder[first] = dict(inner)
            holder = inner
        if value is not None:
            holder[name] = value
        elif holder.get(name) is not None:
            del holder[name]
        else:
            self.patterns.append(key)

    def of_gguf(self) -> ModelSpec:
        """By general.architecture."""
        name = self.values.get("general.architecture")
        if not isinstance(name, str):
            what = "is missing" if name is None else "is not a string"
            raise ModelFileError(f"{self.source}: 'general.architecture' {what}", self.source, "general.architecture")
        card = next((card for card in cards() if name in card.gguf), None)
        if card is None:
            raise refuse_unknown(self.source, name)
        c = Config(self.values, self.source, self.tensors, gguf=name, max_model_len=self.max_model_len)
        c.text("general.architecture")
        return self._finish(card, c, c, name)

    def of_config_json(self) -> ModelSpec:
        """By architectures, by model_type, or by the model_type of a text_config."""
        c = Config(self.values, self.source, self.tensors, max_model_len=self.max_model_len)
        names, kind = c.find("architectures"), c.find("model_type")
        known = [card for card in cards() if kind in card.model_types and card.hf]
        if not names and not known:
            c.refuse("architectures", "'architectures' is missing")
        if names and (not isinstance(names, list) or not all(isinstance(name, str) for name in names)):
            c.refuse("architectures", "field 'architectures' is not an array of strings")
        if isinstance(names, list) and len(names) > 1:
            c.unsupported("architectures", f"'architectures' names several: {json.dumps(names)}")
        name = str(names[0]) if isinstance(names, list) and names else known[0].hf[0]
        card = of_config_json(name, kind)
        is_tower = name.endswith("ForConditionalGeneration")
        inner = c.object("text_config") if card is None or is_tower else None
        if inner is not None:
            return self._of_tower(c, inner, name)
        if card is None:
            raise refuse_unknown(self.source, name)
        kind = c.text("model_type", card.model_types[0])
        if kind not in card.model_types:
            c.unsupported("model_type", f"'architectures' says {name}, 'model_type' says {kind} where it would be {card.model_types[0]}")
        return self._finish(card, c, c, "", is_tower=is_tower)

    def _of_tower(self, c: Config, inner: Config, name: str) -> ModelSpec:
        """The text model of a file that has others, too."""
        if name in _BOTH_WAYS:
            c.unsupported("architectures", f"{name} lets the tokens of a prompt see those behind them, which is not run")
        kind = inner.optional_text("model_type")
        card = next((card for card in cards() if kind in card.model_types), None)
        if card is None:
            known = ", ".join(sorted(kind for card in cards() for kind in card.model_types))
            says = f"text_config, model_type '{kind}'" if kind else "text_config, which names no model_type"
            c.unsupported(
                "text_config",
                f"{name} holds a text model ({says}) that llmi has no card for (known: {known}; llmi.register_family adds one)",
            )
        c.find("model_type")
        own = inner.object_values()
        for key, value in card.text_defaults.items():
            own.setdefault(key, value)
        outer_tied, tied = c.find("tie_word_embeddings"), own.get("tie_word_embeddings")
        if isinstance(outer_tied, bool) and outer_tied is not tied:
            has_head = any(tensor.endswith("lm_head.weight") for tensor in self.tensors)
            own["tie_word_embeddings"] = (
                outer_tied if tied is None else not has_head
            )  # where they contradict each other, what is stored decides
        return self._finish(card, c, inner, "", is_tower=True)

    def _reason(self, spec: ModelSpec, rules: list[Rule], card: Card, architecture: str, name: str, value: Value) -> str | None:
        """Why an unread key changes nothing; None if it may change something."""
        if architecture:
            return inert_reason(rules, card.name, architecture, name, value)
        if card.aliases.get(name) == ():
            return "transformers' class of this family has no such key"
        return inert_reason(rules, card.name, "", name, value) or stated_reason(spec, name, value)

    def _finish(self, card: Card, outer: Config, c: Config, architecture: str, *, is_tower: bool = False) -> ModelSpec:
        spec = run_card(card, c)
        for part in (outer, c):
            for key in KEYS:  # read already, by description_of
                part.find(key)
        spec.rope_choice = spec.rope_choice or c.rope_choice
        spec.ignored_tensors += [name for name in c.ignored if name not in spec.ignored_tensors]
        rules = GGUF if architecture else CONFIG_JSON
        rules = [*TOWERS, *rules] if is_tower else rules
        reason = functools.partial(self._reason, spec, rules, card, architecture)
        self._check_overrides(outer, reason)
        self._refuse_unread(outer, reason, card, architecture, {} if c is outer else c.object_values())
        if not architecture:
            rename(spec, self.tensors, self.source)
        if is_tower:
            spec.ignored_tensors += _TOWER_TENSORS
        self._leave_out(spec)
        return spec

    def _check_overrides(self, c: Config, reason_of: Reason) -> None:
        """Raises InvalidParamsError for a value that no reader took."""
        for key, value in self.changes.items():
            if value is None or c.was_read(key):
                continue
            reason = reason_of(key.removeprefix("text_config."), value)
            why = f" ({reason})" if reason else ""
            raise InvalidParamsError(f"hf_overrides sets '{key}', which no reader of this model needs{why}", _ARGUMENT)

    def _refuse_unread(self, c: Config, reason_of: Reason, card: Card, architecture: str, own: Mapping[str, Value]) -> None:
        """Raises UnsupportedModelError that names all keys that are neither read nor inert. own: a text model's keys, which transformers
        4.52 writes at the top, too."""
        unknown: list[tuple[str, Value]] = []
        for name, value in c.unread().items():
            is_tokenizers = bool(architecture) and name.startswith("tokenizer.")
            if is_tokenizers or reason_of(name.removeprefix("text_config."), value) is not None:
                continue
            if name not in own:
                unknown.append((name, value))
            elif value != own[name] and not self._makes_no_difference(card, own, name, value):
                c.contradiction(name, f"text_config.{name}")
        if not unknown:
            return
        shown = ", ".join(f"'{name}' = {json.dumps(value, ensure_ascii=False)[:120]}" for name, value in unknown[:_MOST_NAMED])
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        nulls = ", ".join(f"{json.dumps(name)}: None" for name, _ in unknown[:_MOST_NAMED])
        raise UnsupportedModelError(
            f"{self.source}: the {card.name} family does not read {shown}{more}: the numbers might be wrong without it. If you know that it"
            f" changes nothing, load the model without it: hf_overrides={{{nulls}}}",
            self.source,
            unknown[0][0],
        )

    def _makes_no_difference(self, card: Card, own: Mapping[str, Value], key: str, value: Value) -> bool:
        """Whether the card makes the same spec of a text model's keys with this value: a window that another key switches off."""
        try:
            specs = [
                run_card(card, Config(keys, self.source, self.tensors, max_model_len=self.max_model_len))
                for keys in (own, {**own, key: value})
            ]
        except LlmiError:
            return False
        return specs[0].to_json() == specs[1].to_json()

    def _leave_out(self, spec: ModelSpec) -> None:
        """Raises InvalidParamsError for a null that matched neither a key nor a tensor that the model can do without."""
        used = spec.tensor_names()
        for pattern in self.patterns:
            if not any(matches(pattern, name) and name not in used for name in self.tensors):
                raise InvalidParamsError(
                    f"hf_overrides takes '{pattern}' away, but the model has no such key, and no such tensor that it could do without",
                    _ARGUMENT,
                )
            spec.ignored_tensors.append(pattern)
