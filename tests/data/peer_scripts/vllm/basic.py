from vllm import LLM, SamplingParams

prompts = ["Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)


def main():
    llm = LLM(model="facebook/opt-125m")
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
    assert [output.prompt for output in outputs] == prompts
    assert all(0 < len(output.outputs[0].token_ids) <= 16 for output in outputs)
    again = llm.generate(prompts, sampling_params)
    assert [output.outputs[0].text for output in again] != [output.outputs[0].text for output in outputs]


if __name__ == "__main__":
    main()
