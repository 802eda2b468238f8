"""No class in csrc/engine grows back into one that owns everything: the largest is bounded, nested types included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from cpp_source import closing, without_comments

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "csrc" / "engine"
# What the largest classes have now. Lower a bound when a class shrinks; raise none.
MOST_MEMBERS = 15
MOST_METHODS = 23
pytestmark = pytest.mark.skipif(not ENGINE.is_dir(), reason="the sources are not beside the tests")


@dataclass
class Size:
    members: int = 0
    methods: int = 0


TYPE = re.compile(r"\b(?:class|struct)\s+([\w:]+)\s*(?:final\s*)?(?::(?!:)[^;{}()]*)?\{")


def without_arguments(text: str) -> str:
    """Without the arguments of templates."""
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return text


def declarations(body: str) -> list[str]:
    """What a class declares, without function bodies, initialisers and the bodies of types."""
    found, start, place = [], 0, 0
    while place < len(body):
        if body[place] == ";":
            found.append(body[start:place])
            start = place + 1
        elif body[place] == "{":
            end = closing(body, place)
            head = body[start:place]
            is_type = re.match(r"\s*(?:template\s*<[^;{]*>\s*)?(?:class|struct|enum)\b", head) is not None
            # A body ends its declaration unless it initialises a member.
            if not is_type and "(" in head:
                found.append(head)
                start = end + 1
            elif is_type:
                start = end + 1
            place = end
        place += 1
    return found


def size_of(body: str) -> Size:
    """Members and methods of a class with this body, those of nested types added."""
    size = Size()
    nested, place = [], 0
    while match := TYPE.search(body, place):
        place = closing(body, match.end() - 1)
        nested.append(body[match.end() : place])
    for inner in map(size_of, nested):
        size.members += inner.members
        size.methods += inner.methods
    for declaration in declarations(body):
        text = " ".join(re.sub(r"\b(?:public|protected|private)\s*:", "", declaration).split())
        if not text or re.match(r"(?:using|typedef|friend|static_assert|enum|class|struct|static constexpr)\b", text):
            continue
        if text.endswith(("= delete", "= default")):
            continue
        text = without_arguments(re.sub(r"\boperator\s*[^\s\w(]+\s*\(", "operator(", text))
        if re.search(r"\w\s*\(", re.split(r"=|\{", text)[0]):
            size.methods += 1
        else:
            size.members += 1 + re.sub(r"\([^()]*\)|\{[^{}]*\}", "", text).count(",")
    return size


def sizes(folder: Path) -> dict[str, Size]:
    """By the outermost class; `struct Engine::Row` in any file counts as Engine's. Records without methods are not classes."""
    found: dict[str, Size] = {}
    for path in sorted(path for suffix in ("h", "cc") for path in folder.rglob(f"*.{suffix}")):
        text = without_comments(path.read_text())
        place = 0
        while match := TYPE.search(text, place):
            place = closing(text, match.end() - 1)
            size = size_of(text[match.end() : place])
            total = found.setdefault(match[1].split("::")[0], Size())
            total.members += size.members
            total.methods += size.methods
    return {name: size for name, size in found.items() if size.methods > 0}


def test_the_count_itself() -> None:
    size = size_of(
        without_comments("""
        public:
          Outer(int a, std::map<int, int> b) : a_(a) {}  // one; two
          ~Outer();
          Outer(const Outer&) = delete;
          bool operator<(const Outer& other) const { return a_ < other.a_; }
          static int Count(const std::function<void(int)>& work);
          int a() const { return a_; }
        private:
          struct Inner {
            int x = 0, y = 0;
            void Move();
          };
          enum class Kind : uint8_t { kOne, kTwo };
          struct Forward;
          static constexpr int kMost = 3;
          std::map<int, std::vector<int>> lists_;
          const std::function<void(int)> work_;
          int a_ = f(1);
          std::atomic<int> b_{0};
        """)
    )
    assert (size.members, size.methods) == (6, 6)


def test_largest_class() -> None:
    found = sizes(ENGINE)
    for what, most in (("members", MOST_MEMBERS), ("methods", MOST_METHODS)):
        name = max(found, key=lambda name: int(getattr(found[name], what)))
        assert getattr(found[name], what) <= most, f"{name} has {found[name]}: at most {most} {what}"
