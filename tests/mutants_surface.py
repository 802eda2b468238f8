"""Planted bugs of the surface: files, values, templates, endings. One list for each kind; tests/mutants.py runs them."""

from __future__ import annotations

from dataclasses import dataclass

import mutants_activation_bits
import mutants_arguments


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


ENDINGS_TESTS = "tests/test_endings.py"
PROCESSES_TESTS = "tests/test_endings_of_processes.py"
OBJECTS_TESTS = "tests/test_objects_travel.py"

MODEL_FILES, IDENTITY = "tests/test_model_files.py", "tests/test_file_identity.py"
FILES = [
    planted("a-pipe-is-waited-for", "csrc/io/input_file.cc", "O_RDONLY | O_NONBLOCK | O_CLOEXEC", "O_RDONLY | O_CLOEXEC", MODEL_FILES),
    planted("a-pipe-is-waited-for-in-python", "python/llmi/_input_file.py", "os.O_RDONLY | os.O_NONBLOCK | ", "os.O_RDONLY | ", MODEL_FILES),
    planted("lists-of-any-length", "csrc/io/gguf.cc", "if (length > *elements_left)", "if (length > UINT64_MAX - 1)", MODEL_FILES),
    planted("values-without-number", "csrc/core/json.cc", "if (++num_values_ > kMaxValues)", "if (++num_values_ < 0)", MODEL_FILES),
    planted("parts-are-not-looked-for", "python/llmi/_layout.py", 'parts, "a split GGUF model")', '[], "a split GGUF model")', MODEL_FILES),
    planted("a-part-of-another-place", "csrc/io/gguf.cc", "if (count > 1 && index != part)", "if (count > 1 && index > 999)", MODEL_FILES),
    planted("a-stale-index-counts", "python/llmi/_layout.py", "if WHOLE not in shards and", "if WHOLE in shards and", MODEL_FILES),
    planted("an-adapter-is-a-model", "csrc/model/file_kind.cc", 'type == "adapter" || is_lora', 'type == "adapters"', MODEL_FILES),
    planted("names-as-they-are", "csrc/model/name_prefix.cc", "if (prefixes.empty()) return", "if (!prefixes.empty()) return", MODEL_FILES),
    planted("a-time-set-back", "csrc/io/input_file.cc", "if (!Equal(now.st_ctim, opened_.st_ctim) &&", "if (now.st_size < 0 &&", IDENTITY),
    planted("another-file-of-the-name", "csrc/io/input_file.cc", "|| named.st_ino != opened_.st_ino", "", IDENTITY),
    planted("nobody-asks-after-loading", "python/llmi/_llm.py", "        files.check_unchanged()\n        self._files", "        self._files", IDENTITY),
    planted("files-that-come-and-go", "python/llmi/_model_files.py", "if self.beside != _beside(self.path):", "if not self.files:", IDENTITY),
    planted("the-digest-of-a-path", "python/llmi/_model_files.py", "digest.update(file.read(offset, _CHUNK_BYTES))", "digest.update(Path(file.path).read_bytes()[offset : offset + _CHUNK_BYTES])", IDENTITY),
    planted("a-digest-of-what-is-there-now", "python/llmi/_model_files.py", "if problem:\n            raise ModelFileError(", "if not file:\n            raise ModelFileError(", IDENTITY),
]  # fmt: skip
CONFIG: list[Mutant] = [
    planted(
        "keys_of_config_json_are_accounted_for",
        "csrc/model/loader.cc",
        "    RefuseUnread(fields, FieldSource::kConfigJson, model.architecture->name);\n",
        "",
        "tests/test_unread_fields.py",
    ),
    planted(
        "keys_of_gguf_are_accounted_for",
        "csrc/io/gguf_fields.cc",
        "!changes_.contains(key) && !read_.contains(key)) unread",
        "!read_.insert(key).second) unread",
        "tests/test_unread_fields.py",
    ),
    planted(
        "tensors_are_accounted_for",
        "csrc/io/recorded_tensors.h",
        "if (!read_.contains(view->name)) unread",
        "if (false) unread",
        "tests/test_unread_fields.py",
    ),
    planted(
        "nested_objects_are_accounted_for",
        "csrc/core/json_fields.cc",
        "  record_->opened.emplace_back(prefix_, object_);\n",
        "  if (prefix_.empty()) record_->opened.emplace_back(prefix_, object_);\n",
        "tests/test_unread_fields.py",
    ),
    planted(
        "inert_at_this_value_only",
        "csrc/model/inert.cc",
        '{"rope_interleaved", "[false]", kNeutral}',
        '{"rope_interleaved", nullptr, kNeutral}',
        "tests/test_unread_fields.py",
    ),
    planted(
        "rows_of_biases_are_put_in_order",
        "csrc/model/weights.cc",
        "interleaved && row < values.size()",
        "false && row < values.size()",
        "tests/test_unread_fields.py",
    ),
    planted(
        "rows_beyond_the_rotated_part_stay",
        "csrc/model/weights.cc",
        "      if (within >= rotary_dim) return row;\n",
        "",
        "tests/test_unread_fields.py",
    ),
    planted(
        "theta_of_rope_parameters",
        "csrc/model/rope_fields.cc",
        "  return inner ? *inner : top.value_or(fallback);",
        "  return top.value_or(fallback);",
        "tests/test_unread_fields.py",
    ),
    planted(
        "old_rope_scale_key",
        "csrc/model/rope_fields.cc",
        'fields.Number(rope_prefix + "scaling.factor") : old_factor;',
        'fields.Number(rope_prefix + "scaling.factor") : 0.0;',
        "tests/test_unread_fields.py",
    ),
    planted(
        "ids_of_config_json",
        "csrc/model/architecture.cc",
        "  CheckTokenIds(json, config.vocab_size);\n",
        '  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) json.Find(key);\n',
        "tests/test_unread_fields.py",
    ),
    planted(
        "ids_that_end_a_text_in_the_core",
        "csrc/sampling/params.cc",
        '  CheckIds("eos_token_ids", params.eos_token_ids, vocab_size);\n',
        "",
        "tests/test_unread_fields.py",
    ),
    planted(
        "mlp_bias_is_read",
        "csrc/model/architectures/llama.cc",
        '  config.mlp_bias = json.Bool("mlp_bias", false);\n',
        '  json.Find("mlp_bias");\n',
        "tests/test_config_keys.py",
    ),
    planted(
        "the_final_cap_of_gemma_3",
        "csrc/model/architectures/gemma3.cc",
        '  config.final_soft_cap = SoftCap(json, "final_logit_softcapping");\n',
        '  SoftCap(json, "final_logit_softcapping");\n',
        "tests/test_config_keys.py",
    ),
    planted(
        "receipts_hold_overrides",
        "python/llmi/_receipt.py",
        '                "hf_overrides": json.loads(source["hf_overrides"] or "{}"),\n',
        "",
        "tests/test_unread_fields.py",
    ),
]
TOKENIZER: list[Mutant] = [
    planted("truncation of the file is kept", "python/llmi/_tokenizer_json.py", "    tokenizer.no_truncation()\n", "", "tests/test_vocabulary_files.py"),
    planted("padding of the file is kept", "python/llmi/_tokenizer_json.py", "    tokenizer.no_padding()\n", "", "tests/test_vocabulary_files.py"),
    planted("dropout of the file is kept", "python/llmi/_tokenizer_json.py", "        tokenizer.model.dropout = None\n", "        pass\n", "tests/test_vocabulary_files.py"),
    planted("a key may stand twice", "python/llmi/_tokenizer_directory.py", ", unique_keys=True", "", "tests/test_vocabulary_files.py"),
    planted("gaps are filled up", "python/llmi/_loaded_tokenizer.py", "MAX_UNUSED_IDS = 65_536", "MAX_UNUSED_IDS = 1 << 60", "tests/test_vocabulary_files.py"),
    planted("bool is an id", "python/llmi/_tokenizer_json.py", "or isinstance(value, bool) or", "or", "tests/test_tokenizer_settings.py"),
    planted("panics pass", "python/llmi/_loaded_tokenizer.py", '!= "PanicException"', '== "PanicException"', "tests/test_vocabulary_files.py"),
    planted("exponential expressions run", "python/llmi/_regex_guard.py", "                return EXPONENTIAL\n", "                pass\n", "tests/test_vocabulary_files.py"),
    planted("normalizers multiply", "python/llmi/_tokenizer_json.py", "MAX_GROWTH = 64", "MAX_GROWTH = 1 << 60", "tests/test_vocabulary_files.py"),
    planted("stated ids are not compared", "python/llmi/_tokenizer_directory.py", "        if given != number:", "        if given is None:", "tests/test_tokenizer_settings.py"),
    planted("flags of classes do nothing", "python/llmi/_tokenizer_directory.py", "    if settings.add_bos is None:", "    if True:", "tests/test_tokenizer_settings.py"),
    planted("flags of added tokens are lost", "python/llmi/_tokenizer_directory.py", "token.content in settings.specials, **token.flags)", "token.content in settings.specials)", "tests/test_tokenizer_settings.py"),
    planted("special_tokens_map.json is not read", "python/llmi/_tokenizer_settings.py", "    elif SPECIALS in files:", "    elif False:", "tests/test_tokenizer_settings.py"),
    planted("added_tokens.json is not read", "python/llmi/_tokenizer_settings.py", "    if not has_decoder and ADDED in files:", "    if False:", "tests/test_tokenizer_settings.py"),
    planted("unknown settings go unsaid", "python/llmi/_tokenizer_directory.py", "    if unused:\n", "    if False:\n", "tests/test_tokenizer_settings.py"),
    planted("ids of config.json go unchecked", "python/llmi/_tokenizer_directory.py", 'check_id(entry, "eos_token_id", path, limit)', "entry", "tests/test_tokenizer_settings.py"),
    planted("a suffix leads", "python/llmi/_tokenizer_json.py", "    return parts[0], parts[1]", "    return parts[0][:1], parts[0][1:] + parts[1]", "tests/test_tokenizer_settings.py"),
    planted("a missing rule goes unsaid", "python/llmi/_gguf_tokenizer.py", '    if model == "gpt2" and not', '    if model == "bert" and not', "tests/test_vocabulary_files.py"),
    planted("another default rule", "python/llmi/_gguf_pre_tokenizers.py", '"default": DEFAULT', '"default": _GPT2', "tests/test_vocabulary_files.py"),
    planted("an HTML tag ends generation", "python/llmi/_gguf_tokenizer.py", "UNMISTAKABLE = {*END_MARKERS[:-1],", "UNMISTAKABLE = {*END_MARKERS,", "tests/test_vocabulary_files.py"),
    planted("numbers of any kind are types", "python/llmi/_gguf_tokenizer.py", "type(value[0]) not in types", "False", "tests/test_vocabulary_files.py"),
    planted("yes is a string", "python/llmi/_gguf_tokenizer.py", "        if value is None or isinstance(value, bool):\n", "        if True:\n", "tests/test_vocabulary_files.py"),
    planted("each cut is tried", "python/llmi/_gguf_tokenizer.py", "        for cut in lengths:\n", "        for cut in range(1, size):\n            usable.get(text[:cut])\n", "tests/test_vocabulary_files.py"),
    planted("merges without bound", "python/llmi/_gguf_tokenizer.py", "MAX_MERGE_WORK, MAX_MERGES = 1 << 28, 1 << 22", "MAX_MERGE_WORK, MAX_MERGES = 1 << 60, 1 << 60", "tests/test_vocabulary_files.py"),
    planted("tokens may stand twice", "csrc/bindings/bind_files.cpp", "if (!is_new) return", "if (false) return", "tests/test_vocabulary_files.py"),
    planted("markup goes unsaid", "python/llmi/_submission.py", "    if parse_special is None:\n        warn", "    if False:\n        warn", "tests/test_tokenizer_settings.py"),
    planted("long texts are encoded first", "python/llmi/_tokenizer.py", "            if at_least > max_model_len:", "            if False:", "tests/test_tokenizer_settings.py"),
    planted("markup that is user-defined is text", "python/llmi/_gguf_tokenizer.py", 'text.startswith("<|") and', 'text.startswith("<||") and', "tests/test_vocabulary_files.py"),
    planted("a prompt dict's parse_special is lost", "python/llmi/_prompts.py", "parse_special if own is None else own", "parse_special", "tests/test_tokenizer_settings.py"),
    planted("beginning-of-text twice", "python/llmi/_tokenizer.py", "            return ids[len(prefix) :]", "            return ids", "tests/test_tokenizer_settings.py"),
    planted("a continuation that a token spans", "python/llmi/_scoring.py", "        if not tail:\n", "        if False:\n", "tests/test_tokenizer_settings.py"),
    planted("a pickled tokenizer forgets its wrapping", "python/llmi/_tokenizer.py", '"prefix": loaded.prefix', '"prefix": []', "tests/test_vocabulary_files.py"),
]  # fmt: skip
TEMPLATES: list[Mutant] = [
    planted(
        "templates_have_little_memory",
        "python/llmi/_chat_worker.py",
        "(resource.RLIMIT_AS, MAX_MEMORY_BYTES)",
        "(resource.RLIMIT_AS, MAX_MEMORY_BYTES << 1)",
        "tests/test_chat_templates.py",
    ),
    planted(
        "templates_have_little_time",
        "python/llmi/_chat_worker.py",
        "signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)",
        "signal.setitimer(signal.ITIMER_PROF, 0)",
        "tests/test_chat_templates.py",
    ),
    planted(
        "templates_write_little", "python/llmi/_chat_worker.py", "if size > MAX_OUTPUT_CHARS:", "if False:", "tests/test_chat_templates.py"
    ),
    planted(
        "templates_are_not_random", "python/llmi/_chat_environment.py", '        "random": _random,\n', "", "tests/test_chat_templates.py"
    ),
    planted(
        "the_generation_tag_is_known",
        "python/llmi/_chat_environment.py",
        'tags = {"generation"}',
        'tags = {"generations"}',
        "tests/test_chat_templates.py",
    ),
    planted(
        "content_after_a_template_is_traced",
        "python/llmi/_chat_traced.py",
        "return join((other, self)) if",
        "return str.__add__(other, self) if",
        "tests/test_chat_templates.py",
    ),
    planted(
        "results_of_filters_are_traced",
        "python/llmi/_chat_environment.py",
        "return Traced(result, tracing.mixed(given) * len(result))",
        "return result",
        "tests/test_chat_templates.py",
    ),
    planted(
        "halves_of_a_token_are_content",
        "python/llmi/_chat.py",
        "        if not found:\n",
        "        if len(letters(start, start + 1)) == 0:\n",
        "tests/test_chat_templates.py",
    ),
    planted(
        "printed_lists_are_joined",
        "python/llmi/_chat_recorded.py",
        "if content._shown or not content:",
        "if not content:",
        "tests/test_chat_templates.py",
    ),
    planted(
        "unused_arguments_are_named",
        "python/llmi/_chat_worker.py",
        '"unused": [name for name in request["asked"] if name not in names]',
        '"unused": []',
        "tests/test_chat_templates.py",
    ),
    planted(
        "unread_keys_are_named", "python/llmi/_chat_worker.py", '"unread": unread(records)', '"unread": []', "tests/test_chat_templates.py"
    ),
    planted(
        "continued_keeps_all", "python/llmi/_chat_worker.py", " or final.strip() not in text[:place]", "", "tests/test_chat_templates.py"
    ),
    planted(
        "tools_take_their_template",
        "python/llmi/_chat_templates.py",
        '    if arguments.get("tools") is not None and "tool_use" in templates:\n        return templates["tool_use"]\n',
        "",
        "tests/test_chat_choice.py",
    ),
    planted(
        "a_missing_path_is_no_template",
        "python/llmi/_chat_templates.py",
        'raise ChatTemplateError(f"chat_template={given!r:.200} looks like a path',
        'return str(f"chat_template={given!r:.200} looks like a path',
        "tests/test_chat_choice.py",
    ),
    planted(
        "a_bad_chat_ends_alone",
        "python/llmi/_chat_prompts.py",
        "            prompts.append(error)\n",
        "            raise\n",
        "tests/test_chat_choice.py",
    ),
    planted(
        "a_fork_has_its_own_renderer",
        "python/llmi/_chat_process.py",
        "os.register_at_fork(after_in_child=renderer.forget)\n",
        "",
        "tests/test_chat_choice.py",
    ),
]
PARAMETERS = [planted(*entry) for entry in mutants_arguments.PARAMETERS]
CALLS = [planted(*entry) for entry in mutants_arguments.CALLS]
ACTIVATION_BITS = [planted(*entry) for entry in mutants_activation_bits.ACTIVATION_BITS]
ENDINGS: list[Mutant] = [
    planted(
        "any_exception_ends_a_call",
        "python/llmi/_call.py",
        "        self._call.cancel()\n",
        "        if isinstance(error, KeyboardInterrupt):\n            self._call.cancel()\n",
        ENDINGS_TESTS,
    ),
    planted("the_end_is_not_torn", "python/llmi/_call.py", "for _ in range(_MAX_TORN):", "for _ in range(1):", ENDINGS_TESTS),
    planted(
        "waits_for_a_step_see_signals",
        "csrc/engine/waiting.cc",
        "    lock.unlock();\n    try {\n      config_.check_wait();",
        "    lock.unlock();\n    try {",
        ENDINGS_TESTS,
    ),
    planted(
        "waits_for_the_thread_see_signals",
        "csrc/engine/waiting.cc",
        "    try {\n      config_.check_wait();\n    } catch (...) {\n      dropped",
        "    try {\n    } catch (...) {\n      dropped",
        ENDINGS_TESTS,
    ),
    planted(
        "hooks_get_the_interrupt", "python/llmi/_call.py", "            if waited > _WAIT_S:", "            if waited < 0:", ENDINGS_TESTS
    ),
    planted("the_interrupt_is_for_ones_own_hooks", "csrc/bindings/gil.cpp", "!scope->Concerns(*request_ids)", "false", ENDINGS_TESTS),
    planted(
        "an_interrupted_request_is_aborted",
        "csrc/bindings/gil.h",
        "scope.interrupted() ? ErrorKind::kInterrupted : kind",
        "kind",
        ENDINGS_TESTS,
    ),
    planted(
        "streams_keep_their_llm",
        "python/llmi/_stream.py",
        "        self._llm: LLM | None = llm",
        "        self._llm: LLM | None = None",
        ENDINGS_TESTS,
    ),
    planted(
        "a_timeout_ends_no_reader",
        "python/llmi/_async.py",
        "            await request.news.wait()\n",
        "            try:\n                await request.news.wait()\n            except asyncio.CancelledError:\n                self._leave()\n                raise\n",
        ENDINGS_TESTS,
    ),
    planted(
        "closing_is_told",
        "csrc/engine/engine.cc",
        "if (runs) FailRequest(*running, closed);",
        "if (runs) FailRequest(*running, Error(ErrorKind::kInterrupted, closed.what()));",
        ENDINGS_TESTS,
    ),
    planted(
        "the_gil_at_the_end",
        "csrc/bindings/gil.cpp",
        "    PyEval_RestoreThread(state_);\n  } catch (...) {\n    SleepForEver();",
        "    PyEval_RestoreThread(state_);\n  } catch (const std::exception&) {\n    SleepForEver();",
        PROCESSES_TESTS,
    ),
    planted(
        "daemon_threads_end_quietly",
        "python/llmi/_errors.py",
        "            if _program_ends and",
        "            if False and",
        PROCESSES_TESTS,
    ),
    planted(
        "a_child_leaves_the_engine",
        "csrc/bindings/engine_handle.cpp",
        "handle->abandoned_ || (handle->engine_ != nullptr && handle->engine_->IsForked())",
        "handle->abandoned_",
        PROCESSES_TESTS,
    ),
    planted("loading_is_dropped", "csrc/model/weights.cc", "dropped_ != nullptr && *dropped_", "false", PROCESSES_TESTS),
]
OBJECTS: list[Mutant] = [
    planted(
        "errors_travel",
        "python/llmi/_errors.py",
        "        return _restore, (type(self), self.args), self.__dict__",
        "        return type(self), self.args, self.__dict__",
        OBJECTS_TESTS,
    ),
    planted(
        "hooks_travel_as_names",
        "python/llmi/_outputs.py",
        '        state["params_resolved"] = {',
        '        state["ignored"] = {',
        OBJECTS_TESTS,
    ),
    planted("nan_equals_itself", "python/llmi/_travel.py", "        return math.isnan(b)", "        return False", OBJECTS_TESTS),
    planted(
        "classes_say_where_they_are",
        "python/llmi/__init__.py",
        "            vars(value)[member].__module__ =",
        "            vars(value)[member].__doc__ =",
        OBJECTS_TESTS,
    ),
    planted(
        "engines_stay",
        "python/llmi/_travel.py",
        "        raise CannotTravelError(type(self).__name__)",
        "        return object.__reduce_ex__(self, 2)  # type: ignore",
        OBJECTS_TESTS,
    ),
    planted("receipts_are_strict", "python/llmi/_travel.py", "not math.isfinite(value)", "value != value", OBJECTS_TESTS),
    planted(
        "receipts_cover_the_prompt",
        "python/llmi/_receipt.py",
        "    if version > 1:\n        add(output.prompt_logprobs)\n",
        "",
        OBJECTS_TESTS,
    ),
    planted(
        "receipts_stand_alone",
        "python/llmi/_receipt.py",
        "receipt._sampling_params, use_tqdm=False)",
        "use_tqdm=False, **{name: value for name, value in vars(receipt._sampling_params).items() if value != getattr(SamplingParams(), name)})",
        OBJECTS_TESTS,
    ),
]
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
        "generate_checks_first",
        "python/llmi/_cli.py",
        "    if stream._refused is not None:\n        raise stream._refused\n",
        "",
        "tests/test_chat_command.py",
    ),
    planted("messages_of_several_lines", "python/llmi/_chat_lines.py", "% 2 == 1", "% 2 == 2", "tests/test_chat_command.py"),
    planted("history_is_bounded", "python/llmi/_chat_lines.py", "lines[-MAX_HISTORY:]", "lines", "tests/test_chat_command.py"),
]
ARITHMETIC: list[Mutant] = [
    planted("the workspace is left out of the sum", "csrc/engine/sizing.cc", "weights + needs.workspace_bytes + cache;", "weights + cache;", "tests/test_memory_arithmetic.py"),
    planted("a scored prompt's last token is read", "csrc/engine/engine.cc", "std::max<int64_t>(1, prompt_len - 1) : prompt_len", "prompt_len : prompt_len", "tests/test_memory_arithmetic.py"),
    planted("windows do not count in operations", "python/llmi/_inspect.py", "if not window or num_tokens <= window:", "if window >= 0:", "tests/test_memory_arithmetic.py"),
    planted("rolling windows are a token short", "python/llmi/_scoring.py", "end - max_length - 1", "end - max_length", "tests/test_memory_arithmetic.py"),
    planted("wheels with test parts", "pyproject.toml", 'LLMI_TESTING = "OFF"', 'LLMI_TESTING = "ON"', "tests/test_build_options.py"),
]  # fmt: skip
PROMISE: list[Mutant] = [
    planted("judged drafts are cut to the step's room", "csrc/engine/speculate.cc", "sample.judges_drafts() ? kMaxDraftNodes : room", "room", "tests/test_promise.py"),
    planted("a waiting draft is proposed again", "csrc/engine/speculate.cc", "!sample->judges_drafts() || sample->whole_draft) continue", "!sample->judges_drafts()) continue", "tests/test_promise.py"),
    planted("a rule may be a tenth off", "python/llmi/_testing_rules.py", "ROUNDING = 1e-9", "ROUNDING = 0.1", "tests/test_promise.py"),
]  # fmt: skip

SURFACE = [
    *FILES,
    *CONFIG,
    *TOKENIZER,
    *TEMPLATES,
    *PARAMETERS,
    *CALLS,
    *ACTIVATION_BITS,
    *ENDINGS,
    *OBJECTS,
    *PLACES,
    *COMMAND_LINE,
    *ARITHMETIC,
    *PROMISE,
]
