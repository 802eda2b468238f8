"""Which card reads a model: by config.json's architectures and model_type, or by GGUF's general.architecture."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from llmi.errors import InvalidParamsError, LlmiError, ModelFileError, UnsupportedModelError
from llmi.families.config import Config, Value
from llmi.families.spec import ModelSpec

Read: TypeAlias = Callable[[Config], ModelSpec]


@dataclasses.dataclass(frozen=True)
class Card:
    """All that llmi knows of a family: the names that it goes by, and how its files become a spec.

    Attributes
    ----------
    name : str
        The family's own name, which messages and specs have.
    read : callable
        Makes a ModelSpec of a Config.
    hf : tuple of str
        config.json's architectures.
    model_types : tuple of str
        config.json's model_type, also that of a text_config.
    gguf : tuple of str
        general.architecture of GGUF files.
    aliases : mapping of str to tuple of str
        Names of keys in config.json, where they differ.
    defaults : mapping of str to value
        Values of absent keys of config.json, as transformers' configuration class has them.
    text_defaults : mapping of str to value
        Values of absent keys of a text_config: transformers writes there only what differs from its class.
    is_users : bool
        Registered by the user, not by llmi.
    """

    name: str
    read: Read
    hf: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    gguf: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    text_defaults: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    is_users: bool = True

    def digest(self) -> str:
        """SHA-256 of the card's source text and names, as far as Python has the text."""
        try:
            text = inspect.getsource(self.read)
        except (OSError, TypeError):
            text = self.read.__qualname__
        defaults = [sorted(values.items(), key=repr) for values in (self.defaults, self.text_defaults)]
        names = [self.name, self.hf, self.model_types, self.gguf, sorted(self.aliases.items()), defaults]
        return hashlib.sha256(f"{names!r}\n{text}".encode()).hexdigest()


_cards: Final[dict[str, Card]] = {}


def cards() -> list[Card]:
    """All cards, llmi's first, by name."""
    return sorted(_cards.values(), key=lambda card: (card.is_users, card.name))


def family(
    name: str,
    *,
    hf: str | Sequence[str] = (),
    model_type: str | Sequence[str] = (),
    gguf: str | Sequence[str] = (),
    keys: Mapping[str, str | tuple[str, ...]] | None = None,
    defaults: Mapping[str, Value] | None = None,
    text_defaults: Mapping[str, Value] | None = None,
) -> Callable[[Read], Card]:
    """Makes a card of a function that reads a Config.

    Parameters
    ----------
    name : str
    hf, model_type, gguf : str or several
        config.json's architectures and model_type (the name, if it is not given), GGUF's general.architecture.
    keys : mapping of str to str or tuple of str
        Another name of a key in this family's config.json, as transformers' attribute_map has it; a tuple: all names that it has there.
    defaults : mapping
        Values of keys that config.json may leave out.
    text_defaults : mapping
        Values of further keys that a text_config inside another model's config.json may leave out.

    Examples
    --------
    >>> from llmi.families import Style, dense
    >>> @family("plover", hf="PloverForCausalLM")
    ... def plover(c):
    ...     return dense(c, Style(gated=False, activation="relu"))
    >>> llmi.register_family(plover).name
    'plover'
    """

    def make(read: Read) -> Card:
        types = _tuple(model_type) or (name,)
        names = {key: (other, key) if isinstance(other, str) else other for key, other in (keys or {}).items()}
        return Card(name, read, _tuple(hf), types, _tuple(gguf), names, dict(defaults or {}), dict(text_defaults or {}))

    return make


def _tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def register_family(card: Card) -> Card:
    """Adds a card, so that models of its architectures load; a card of the same name is replaced if it is the user's.

    Parameters
    ----------
    card : Card
        See `llmi.families.family`.

    Returns
    -------
    Card
        The card.

    Raises
    ------
    InvalidParamsError
        It is no card, has no architecture, or takes a name that another card has.

    Examples
    --------
    >>> from llmi.families import Style, dense, family
    >>> @register_family
    ... @family("plover", hf="PloverForCausalLM")
    ... def plover(config):
    ...     return dense(config, Style(gated=False, activation="relu"))
    >>> plover.name, plover.hf
    ('plover', ('PloverForCausalLM',))
    """
    if not isinstance(card, Card) or not callable(card.read):
        raise InvalidParamsError(f"register_family takes a card (llmi.families.family makes one), not {card!r:.80}", "card")
    if not card.name or not (card.hf or card.gguf):
        raise InvalidParamsError(f"the card {card.name!r} names no architecture: hf or gguf", "card")
    for other in _cards.values():
        shared = {*card.hf, *card.gguf} & {*other.hf, *other.gguf}
        if shared and other.name != card.name and card.is_users:
            raise InvalidParamsError(f"the architecture {min(shared)!r} has a card already: {other.name}", "card")
        if other.name == card.name and not other.is_users:
            raise InvalidParamsError(f"{card.name!r} is a family of llmi's own", "card")
    _cards[card.name] = card
    return card


def add_own(*own: Card) -> None:
    """Registers llmi's own cards."""
    for card in own:
        register_family(dataclasses.replace(card, is_users=False))


def forget_family(name: str) -> None:
    """Takes a user's card away. Raises InvalidParamsError if there is none of this name."""
    if name not in _cards or not _cards[name].is_users:
        raise InvalidParamsError(f"no card of the name {name!r} was registered", "name")
    del _cards[name]


def of_config_json(architecture: str, model_type: Value) -> Card | None:
    """The card of an architecture; where several have it, that of the model_type, or whose own name it is."""
    named = [card for card in cards() if architecture in card.hf]
    return min(named, key=lambda card: (model_type not in card.model_types, card.hf.index(architecture)), default=None)


def known_architectures() -> list[str]:
    """Names of all architectures that have a card."""
    return [name for card in cards() for name in (*card.gguf, *card.hf)]


def refuse_unknown(source: str, name: str) -> ModelFileError:
    """The error for an architecture without a card."""
    return UnsupportedModelError(
        f"{source}: unknown architecture '{name}' (llmi runs: {', '.join(dict.fromkeys(known_architectures()))}). If its layers are made of"
        " parts that llmi has, a card of a few lines teaches it the family: llmi.register_family (docs/models.md)",
        source,
        "architecture",
    )


def run_card(card: Card, c: Config) -> ModelSpec:
    """The card's spec. A mistake inside the card is an UnsupportedModelError that names the card; errors about the file pass."""
    try:
        spec = card.read(c.of_family(card.aliases, card.defaults))
        if not isinstance(spec, ModelSpec):
            raise TypeError(f"it returned {type(spec).__name__}, not a ModelSpec")
        spec.family = spec.family or card.name
        spec.to_json()
    except LlmiError:
        raise
    except Exception as error:
        what = f"{c.source}: the card '{card.name}' failed: {type(error).__name__}: {error}"
        raise UnsupportedModelError(what, c.source, f"card {card.name}") from error
    return spec
