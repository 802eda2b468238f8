"""Planted bugs of the surface: files, values, templates, endings. One list for each kind; tests/mutants.py runs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Mutant:
    """In `file`, `old` becomes `new`; `tests` must then fail."""

    group: str
    name: str
    file: str
    old: str
    new: str
    tests: str


def planted(name: str, file: str, old: str, new: str, tests: str) -> Mutant:
    """One of these."""
    return Mutant("surface", name, file, old, new, tests)


FILES: list[Mutant] = []
CONFIG: list[Mutant] = []
TOKENIZER: list[Mutant] = []
TEMPLATES: list[Mutant] = []
PARAMETERS: list[Mutant] = []
CALLS: list[Mutant] = []
ENDINGS: list[Mutant] = []
OBJECTS: list[Mutant] = []
PLACES: list[Mutant] = [
    planted(
        "stderr_is_not_always_there", "python/llmi/_progress.py", "    if sys.stderr is not None:", "    if True:", "tests/test_places.py"
    ),
    planted("a_full_stdout_is_quiet_at_the_end", "python/llmi/_console.py", "        _discard(1)\n", "", "tests/test_places.py"),
    planted(
        "ascii_terminals",
        "python/llmi/_console.py",
        'reconfigure(errors="backslashreplace")',
        'reconfigure(errors="strict")',
        "tests/test_places.py",
    ),
    planted(
        "no_home_names_the_variable",
        "python/llmi/_models.py",
        "    except RuntimeError:\n        raise ModelFileError(",
        "    except KeyError:\n        raise ModelFileError(",
        "tests/test_places.py",
    ),
    planted("variables_are_checked", "python/llmi/_models.py", "    check_environment()\n", "", "tests/test_places.py"),
    planted(
        "files_read_once_are_no_used_memory",
        "csrc/core/system_limits.cc",
        "  used -= std::min(used, ReadField(",
        "  std::min(used, ReadField(",
        "tests/test_places.py",
    ),
    planted(
        "outer_groups_count",
        "csrc/core/system_limits.cc",
        "    group.erase(group.rfind('/'));",
        "    group.clear();",
        "tests/test_places.py",
    ),
    planted("the_log_gives_the_reason", "python/llmi/_log.py", 'why = "as given"', 'why = "the model\'s"', "tests/test_places.py"),
    planted("projectors_are_no_models", "python/llmi/_hub_files.py", 'r"mmproj|imatrix"', 'r"imatrix"', "tests/test_hub.py"),
    planted(
        "sets_are_fetched_whole",
        "python/llmi/_hub_files.py",
        "    if missing:\n        raise",
        "    if False:\n        raise",
        "tests/test_hub.py",
    ),
    planted("a_refusal_is_final", "python/llmi/_hub.py", "        if _is_final(error):", "        if False:", "tests/test_hub.py"),
    planted("the_disk_is_looked_at_first", "python/llmi/_hub.py", "    if num_bytes > free:", "    if False:", "tests/test_hub.py"),
]
COMMAND_LINE: list[Mutant] = [
    planted("flags_are_spelt_out", "python/llmi/_cli.py", "allow_abbrev=False", "allow_abbrev=True", "tests/test_chat_command.py"),
    planted(
        "an_answer_has_room",
        "python/llmi/_chat_session.py",
        "            if len(ids) + room <= limit:",
        "            if len(ids) <= limit:",
        "tests/test_chat_command.py",
    ),
    planted("two_slashes_are_text", "python/llmi/_chat_session.py", ' and not text.startswith("//")', "", "tests/test_chat_command.py"),
    planted(
        "sigterm_leaves_a_sane_terminal",
        "python/llmi/_chat_session.py",
        "signal.signal(number, end)",
        "signal.SIG_DFL",
        "tests/test_chat_command.py",
    ),
    planted(
        "a_bad_load_changes_nothing",
        "python/llmi/_chat_session.py",
        "    return _checked(parameters), system, turns",
        "    return parameters, system, turns",
        "tests/test_chat_command.py",
    ),
    planted(
        "notes_are_not_replaced",
        "python/llmi/_chat_session.py",
        "        if path.exists() and not _is_saved_chat(path):",
        "        if False:",
        "tests/test_chat_command.py",
    ),
    planted(
        "generate_checks_first", "python/llmi/_cli.py", "    if error is not None:\n        raise error\n", "", "tests/test_chat_command.py"
    ),
    planted("messages_of_several_lines", "python/llmi/_chat_lines.py", "% 2 == 1", "% 2 == 2", "tests/test_chat_command.py"),
    planted("history_is_bounded", "python/llmi/_chat_lines.py", "lines[-MAX_HISTORY:]", "lines", "tests/test_chat_command.py"),
]
ARITHMETIC: list[Mutant] = []
PROMISE: list[Mutant] = []

SURFACE = [*FILES, *CONFIG, *TOKENIZER, *TEMPLATES, *PARAMETERS, *CALLS, *ENDINGS, *OBJECTS, *PLACES, *COMMAND_LINE, *ARITHMETIC, *PROMISE]
