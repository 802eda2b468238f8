from vllm import LLM, SamplingParams
from vllm.outputs import RequestOutput

prompts = ["The sun is", "The sun is", "The sun is"]


def main():
    llm = LLM(model="facebook/opt-125m", seed=0)
    each = [
        SamplingParams(temperature=0.0, max_tokens=8),
        SamplingParams.from_optional(temperature=1.0, top_p=None, seed=1, max_tokens=8, stop_token_ids=None),
        SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=8, stop=["\n"], logit_bias={1: -100}, bad_words=["moon"]),
    ]
    outputs: list[RequestOutput] = llm.generate(prompts, each, use_tqdm=False)
    assert [len(output.outputs) for output in outputs] == [1, 1, 3]
    assert len({completion.text for completion in outputs[2].outputs}) == 3
    request_ids = llm.enqueue(prompts, each)
    later = llm.wait_for_completion()
    assert len(request_ids) == 3 and [output.outputs[0].token_ids for output in later][:2] == [o.outputs[0].token_ids for o in outputs][:2]
    print(outputs)


if __name__ == "__main__":
    main()
