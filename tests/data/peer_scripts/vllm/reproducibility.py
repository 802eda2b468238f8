import random

from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is", "The future of AI is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=8)


def main():
    first = LLM(model="facebook/opt-125m", seed=1)
    second = LLM(model="facebook/opt-125m", seed=1)
    state = random.getstate()
    outputs = [llm.generate(prompts, sampling_params) for llm in (first, second)]
    assert random.getstate() == state
    texts = [[output.outputs[0].text for output in each] for each in outputs]
    print(texts[0])
    assert texts[0] == texts[1]


if __name__ == "__main__":
    main()
