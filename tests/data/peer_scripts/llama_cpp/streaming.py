import json

from llama_cpp import Llama

llm = Llama(model_path="../models/7B/ggml-model.bin", verbose=False, n_threads=2)

stream = llm(
    "Question: What are the names of the planets in the solar system? Answer: ",
    max_tokens=24,
    stop=["Q:", "\n"],
    seed=3,
    stream=True,
)

outputs = list(stream)
for output in outputs:
    print(json.dumps(output, indent=2))
assert outputs[-1]["choices"][0]["finish_reason"] in ("stop", "length")
whole = llm("Question: What are the names of the planets in the solar system? Answer: ", max_tokens=24, stop=["Q:", "\n"], seed=3)
assert "".join(output["choices"][0]["text"] for output in outputs) == whole["choices"][0]["text"]
