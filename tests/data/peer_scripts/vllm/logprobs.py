import math

from vllm import LLM, SamplingParams


def perplexity(output):
    entries = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return math.exp(-sum(position[token].logprob for token, position in entries) / (len(output.prompt_token_ids) - 1))


def main():
    llm = LLM(model="facebook/opt-125m", max_logprobs=20)
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=5, prompt_logprobs=0)
    output = llm.generate("The quick brown fox jumps over the lazy dog.", params)[0]
    print(f"perplexity {perplexity(output):.2f}")
    for token, position in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True):
        assert position[token].rank == 1 and len(position) >= 5
        print({entry.decoded_token: round(entry.logprob, 3) for entry in position.values()})
    assert output.outputs[0].cumulative_logprob <= 0


if __name__ == "__main__":
    main()
