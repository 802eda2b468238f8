from vllm import LLM, SamplingParams

prompts = ["The future of AI is", "One, two, three, one, two, three, one, two"]
sampling_params = SamplingParams(temperature=0, max_tokens=32)


def main():
    speculative_config = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    llm = LLM(
        model="facebook/opt-125m",
        trust_remote_code=True,
        tensor_parallel_size=1,
        enable_chunked_prefill=True,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        gpu_memory_utilization=0.9,
        speculative_config=speculative_config,
        disable_log_stats=False,
    )
    outputs = llm.generate(prompts, sampling_params=sampling_params)
    for output in outputs:
        print("-" * 50)
        print(f"prompt: {output.prompt}")
        print(f"generated text: {output.outputs[0].text}")
    plain = LLM(model="facebook/opt-125m", max_model_len=512).generate(prompts, sampling_params=sampling_params)
    assert [output.outputs[0].token_ids for output in plain] == [output.outputs[0].token_ids for output in outputs]


if __name__ == "__main__":
    main()
