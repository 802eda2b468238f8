from vllm import LLM, SamplingParams

prefix = (
    "You are an expert school principal, skilled in effectively managing faculty and staff. Draft questions for a potential Head Teacher. "
)
prompts = ["Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]
generating_prompts = [prefix + prompt for prompt in prompts]
sampling_params = SamplingParams(temperature=0.0, max_tokens=8)


def main():
    regular_llm = LLM(model="facebook/opt-125m", gpu_memory_utilization=0.4)
    outputs = regular_llm.generate(generating_prompts, sampling_params)
    regular_generated_texts = [output.outputs[0].text for output in outputs]
    del regular_llm

    prefix_cached_llm = LLM(model="facebook/opt-125m", enable_prefix_caching=True, gpu_memory_utilization=0.4)
    prefix_cached_llm.generate(generating_prompts[0], sampling_params)
    outputs = prefix_cached_llm.generate(generating_prompts, sampling_params)
    cached_generated_texts = [output.outputs[0].text for output in outputs]
    generated_same = all(regular == cached for regular, cached in zip(regular_generated_texts, cached_generated_texts, strict=True))
    print(f"Generated answers are the same: {generated_same}")
    assert generated_same and outputs[0].num_cached_tokens > 0
    prefix_cached_llm.reset_prefix_cache()


if __name__ == "__main__":
    main()
