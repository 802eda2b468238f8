"""Random chat templates for tests/support/fuzz_inputs.py."""

from __future__ import annotations

import random

ATOMS = [
    "messages",
    "messages[0].content",
    "x",
    "ns.x",
    "'a'",
    "'ab' * 1000",
    "[1]",
    "1",
    "range(1000)",
    "range(100000)",
    "{}",
    "namespace",
    "none",
    "loop.index",
    "''",
    "messages[0]",
    "'é'",
    "10 ** 30",
    "0.5",
    "true",
    "bos_token",
    "tools",
    "cycler('a', 'b')",
    "dict(a=1)",
    "lipsum",
    "joiner(',')",
    "self",
    "caller",
    "messages.__class__",
    "''.__class__.__mro__",
    "raise_exception",
    "strftime_now('%Y')",
]
FILTERS = [
    "length",
    "upper",
    "list",
    "join(',')",
    "replace('a', 'b' * 1000)",
    "tojson",
    "tojson(indent=1000)",
    "indent(1000)",
    "center(100000)",
    "wordwrap(1)",
    "batch(2)",
    "sort",
    "reverse",
    "string",
    "trim",
    "first",
    "last",
    "random",
    "unique",
    "sum",
    "map('upper')",
    "select",
    "items",
    "escape",
    "default('x')",
    "int",
    "float",
    "format",
    "xmlattr",
    "urlize",
    "pprint",
    "groupby('x')",
    "dictsort",
    "slice(100000)",
    "attr('__class__')",
    "truncate(5)",
    "title",
    "striptags",
]
METHODS = [
    ".zfill(100000000)",
    ".ljust(100000000)",
    ".split('a')",
    ".replace('a', 'aa' * 100)",
    ".join(messages)",
    ".format(1)",
    ".strip()",
    ".items()",
    ".append(1)",
    ".upper()",
    ".expandtabs(100000000)",
    ".encode()",
    ".__add__('x')",
    "[0]",
    "[-1]",
    "[1:]",
    "[::-1]",
    ".get('x')",
    ".count('')",
    ".center(99999999)",
    ".update({})",
]


def expression(rng: random.Random, depth: int = 0) -> str:
    text = rng.choice(ATOMS)
    for _ in range(rng.randrange(3)):
        roll = rng.random()
        if roll < 0.4:
            text = f"({text})|{rng.choice(FILTERS)}"
        elif roll < 0.6:
            text = f"({text}){rng.choice(METHODS)}"
        elif depth < 2:
            text = f"({text}) {rng.choice(['+', '~', '*', '%', '**', '//', '-', 'in', 'and', 'or', 'is', '=='])} ({expression(rng, depth + 1)})"
    return text


def template(rng: random.Random, depth: int = 0) -> str:
    parts = []
    for _ in range(rng.randrange(1, 4)):
        body = template(rng, depth + 1) if depth < 3 else "y"
        roll = rng.randrange(10)
        if roll == 0:
            parts.append(f"{{% for x in {expression(rng)} %}}{body}{{% endfor %}}")
        elif roll == 1:
            parts.append(f"{{% for x in range({rng.choice([3, 1000, 100000])}) %}}{body}{{% endfor %}}")
        elif roll == 2:
            parts.append(
                f"{{% set ns = namespace(x={expression(rng)}) %}}{{% for i in range(60) %}}{{% set ns.x = ns.x {rng.choice('+~')} ns.x %}}{{% endfor %}}"
            )
        elif roll == 3:
            parts.append(f"{{% macro m(x) %}}{body}{{{{ m(x) }}}}{{% endmacro %}}{{{{ m(1) }}}}")
        elif roll == 4:
            parts.append(f"{{% if {expression(rng)} %}}{body}{{% else %}}{body}{{% endif %}}")
        elif roll == 5:
            parts.append(f"{{% set x = {expression(rng)} %}}{body}")
        elif roll == 6:
            parts.append(f"{{% generation %}}{body}{{% endgeneration %}}")
        elif roll == 7:
            parts.append(
                rng.choice(
                    [
                        "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
                        "{% include 'x' %}",
                        "{% extends 'x' %}",
                        "{% call m() %}{% endcall %}",
                        "{% filter upper %}x{% endfilter %}",
                        "{% raw %}x{% endraw %}",
                        "{{",
                        "{%",
                        "{# ",
                        "{% break %}",
                        "{{ '" + "x" * 10000 + "' }}",
                    ]
                )
            )
        else:
            parts.append(f"{{{{ {expression(rng)} }}}}")
    return "".join(parts)


# --- areas
