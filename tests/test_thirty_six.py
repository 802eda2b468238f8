"""Thirty-six ways in which servers break, each with the tests that hold ours to the right behaviour."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
#: number: (what breaks elsewhere, the tests). A test is "file::function", or "file" for all of it.
WAYS: dict[int, tuple[str, list[str]]] = {
    1: ("a client that waits for a whole answer goes, and the request runs on", ["server_ending::test_a_client_that_goes_frees_its_blocks", "soak::test_a_slice"]),
    2: ("a client is cut in a stream, and the next request is blocked", ["server_ending::test_a_client_that_goes_frees_its_blocks", "soak::test_a_slice"]),
    3: ("useless aborts after normal ends", ["server_waiting::test_3_an_end_is_no_abort"]),
    4: ("an unfinished turn changes what the server keeps", ["server_tools::test_responses_are_chats", "soak::test_a_slice"]),
    5: ("a slow reader fills memory", ["server_waiting::test_5_what_waits_for_a_slow_reader_is_bounded", "server_waiting::test_5_a_slow_reader_below_the_bound_gets_all",
                                         "server_connections::test_5_a_client_that_does_not_read_is_cut_off",
                                         "server_waiting::test_5_a_slow_reader_that_makes_progress_is_not_cut"]),
    6: ("n of a million", ["server_guard::test_6_7_answers_that_would_be_too_large", "server_tools::test_bad_bodies"]),
    7: ("log-probabilities of the prompt over the whole vocabulary", ["server_guard::test_6_7_answers_that_would_be_too_large"]),
    8: ("tokens that are no text in top_logprobs", ["server::test_log_probabilities_of_a_chat", "server::test_log_probabilities_bit_for_bit"]),
    9: ("echo with max_tokens of 0", ["server_tools::test_scoring_a_prompt", "server_waiting::test_9_the_core_refuses_continuations_of_no_token"]),
    10: ("a lone surrogate", ["server_tools::test_bad_bodies", "soak::test_a_slice"]),
    11: ("bytes that are no text in an error's message", ["server_tools::test_bad_bodies", "soak::test_bodies_that_nobody_would_write"]),
    12: ("shapes of the chunk with the usage", ["server::test_answers_are_those_of_generate"]),
    13: ("stop strings across chunks", ["server::test_answers_are_those_of_generate", "detokenizer", "soak::test_a_slice"]),
    14: ("tool calls lost between chunks", ["tools_stream", "server_tools::test_tool_calls_whole_and_streamed"]),
    15: ("a queue without bound", ["server_ending::test_15_a_full_queue", "online::test_a_full_queue_refuses"]),
    16: ("connections that nobody answers", ["server_connections::test_16_one_connection_too_many_is_told", "server_bad_input::test_16_connections_up_to_the_limit_of_files"]),
    17: ("a dead engine is healthy", ["server::test_models_health_and_ready", "server::test_a_dead_engine_leaves_the_others_alone", "online::test_health_and_live_state"]),
    18: ("a deadline in the queue ends as length", ["server_ending::test_18_deadlines", "server_ending::test_18_a_body_cannot_outlast_the_servers_deadline", "online::test_deadlines_count_from_the_arrival", "server_waiting::test_18_the_time_of_the_body_counts"]),
    19: ("SIGTERM drops requests", ["server_ending::test_19_the_end_finishes_what_runs", "server_ending::test_19_what_does_not_finish_is_told", "server_ending::test_19_sigterm_ends_with_0",
                                     "server_ending::test_19_a_body_on_its_way_is_not_waited_for", "server_ending::test_19_a_client_that_does_not_read_does_not_hold_up_the_end",
                                     "soak::test_two_servers_that_end_under_load"]),
    20: ("routes without a key", ["server_guard::test_20_every_route_needs_a_key_but_those_that_are_named"]),
    21: ("any web page may use localhost", ["server_guard::test_21_22_hosts_and_origins"]),
    22: ("Origin: null", ["server_guard::test_21_22_hosts_and_origins", "server_guard::test_null_is_an_origin_if_it_is_named"]),
    23: ("silence that proxies cut", ["server_waiting::test_23_silent_streams_get_comments", "server_waiting::test_23_the_silence_counts_from_the_last_event"]),
    24: ("a user's text becomes control tokens", ["tokenizer::test_user_text_is_never_a_special_token", "tokenizer::test_special_tokens_inside_messages_stay_text",
                                                      "chat_templates::test_control_tokens_of_the_assistant_are_tokens_and_those_of_others_text"]),
    25: ("a grammar ends the process", ["structured_inputs", "soak::test_bodies_that_nobody_would_write"]),
    26: ("what cannot be enforced is left out", ["strict_schema", "server_tools::test_structured_outputs_by_all_names"]),
    27: ("schemas that compile for minutes", ["structured_inputs", "grammar_deadline", "soak::test_a_slice"]),
    28: ("grammars with speculation", ["core_constraints::test_forced_drafts_change_no_token", "structured::test_a_real_model_with_speculation_and_receipts", "matrix"]),
    29: ("seeds that others change", ["online::test_requests_without_a_seed_get_their_own", "server::test_a_drawn_seed_repeats_the_answer"]),
    30: ("templates and tokenizers that block the loop", ["online::test_chats_are_prepared_off_the_loop", "online::test_long_texts_leave_the_loop_free", "server_bad_input::test_30_a_body_of_64_mib",
                                                                  "server::test_30_large_answers_are_made_off_the_loop", "server::test_30_ids_to_detokenize_are_read_off_the_loop"]),
    31: ("half a header held without end", ["server_connections", "server_guard::test_31_sizes", "server_guard::test_31_a_body_that_does_not_come", "server_bad_input::test_one_byte_a_second"]),
    32: ("memory of each request", ["server_waiting::test_32_requests_leave_no_objects_behind"]),
    33: ("tokens cost more the longer the text", ["online::test_a_delta_costs_what_is_new"]),
    34: ("a core busy without work", ["server_waiting::test_34_a_server_without_work_makes_no_steps"]),
    35: ("contents in parts, bare errors", ["server_tools::test_chats_as_clients_write_them", "server_tools::test_methods_and_paths", "server_bad_input::test_methods_and_paths",
                                             "server_waiting::test_refusals_of_connections_are_counted"]),
    36: ("cached_tokens absent, or another key's", ["server_waiting::test_36_cached_tokens_are_those_of_the_keys_own_salt", "online::test_cached_tokens_are_known_with_the_first_output"]),
}  # fmt: skip


@functools.cache
def functions_of(name: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((FOLDER / f"test_{name}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")}


def test_there_are_thirty_six() -> None:
    assert list(WAYS) == list(range(1, 37))


@pytest.mark.parametrize("number", WAYS)
def test_each_way_has_its_tests(number: int) -> None:
    _, tests = WAYS[number]
    assert tests
    for entry in tests:
        file, _, function = entry.partition("::")
        assert functions_of(file) and (not function or function in functions_of(file)), entry
