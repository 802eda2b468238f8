from vllm import LLM
from vllm.sampling_params import BeamSearchParams


def main():
    llm = LLM(model="facebook/opt-125m")
    params = BeamSearchParams(beam_width=4, max_tokens=8)
    outputs = llm.beam_search([{"prompt": "The capital of France is"}, {"prompt": "Once upon a time"}], params)
    for output in outputs:
        print(output.sequences[0].text)
        assert len(output.sequences) == 4
        scores = [sequence.cum_logprob / len(sequence.tokens) for sequence in output.sequences]
        assert scores == sorted(scores, reverse=True)
    assert outputs[0].sequences[0].text.startswith("The capital of France is")


if __name__ == "__main__":
    main()
