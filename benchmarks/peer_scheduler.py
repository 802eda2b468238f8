"""Drives transformers' continuous-batching scheduler over a list of requests, no model behind it: `scheduling.py --peers-python` calls it.

Reads {"requests": [[prompt tokens, tokens out], ..], "num_blocks", "block_size", "max_tokens"} from stdin and prints {"seconds", "steps"}.
What is timed is what llmi's scheduler does too: choosing a step's work, blocks, and the requests' states. Neither the tensors that
transformers builds from it nor its metrics. It is the scheduler of transformers 4.57; version 5 has another.
"""

from __future__ import annotations

import json
import sys
import time

from transformers import GenerationConfig, LlamaConfig
from transformers.generation.continuous_batching import cache as paged
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import FIFOScheduler


def main() -> None:
    job = json.load(sys.stdin)
    # Its sizing asks a GPU for its memory; sizes are given here.
    paged.get_device_and_memory_breakdown = lambda: ("cpu", 1 << 40, 0, 0)
    config = LlamaConfig(hidden_size=8, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=1, vocab_size=16)
    sizes = GenerationConfig()
    sizes.block_size, sizes.num_blocks, sizes.max_batch_tokens = job["block_size"], job["num_blocks"], job["max_tokens"]
    scheduler = FIFOScheduler(paged.PagedAttentionCache(config, sizes, "cpu"))
    for number, (prompt_len, max_tokens) in enumerate(job["requests"]):
        prompt = [1] * prompt_len
        # It ends a request at the step after its last token: one less makes the steps equal.
        scheduler.add_waiting_request(RequestState(str(number), prompt, prompt, max_new_tokens=max_tokens - 1))
    steps = 0
    start = time.perf_counter()
    while scheduler.has_pending_requests():
        for state in scheduler.schedule_batch(job["max_tokens"]):
            state.position_offset += len(state.prompt_ids)
            if state.remaining_prompt_ids:
                state.status = RequestStatus.SPLIT_PENDING_REMAINDER
                continue
            state.status = RequestStatus.DECODING
            state.prompt_ids = [steps]
            if state.update_with_token(steps):
                scheduler.finish_request(state.request_id)
        steps += 1
    print(json.dumps({"seconds": time.perf_counter() - start, "steps": steps}))


if __name__ == "__main__":
    main()
