import argparse
import json

from llama_cpp import Llama

parser = argparse.ArgumentParser()
parser.add_argument("-m", "--model", type=str, default="../models/7B/ggml-model.bin")
args = parser.parse_args([])

llm = Llama(model_path=args.model)

output = llm(
    "Question: What are the names of the planets in the solar system? Answer: ",
    max_tokens=24,
    stop=["Q:", "\n"],
    echo=True,
)

print(json.dumps(output, indent=2))
assert output["object"] == "text_completion" and output["choices"][0]["text"].startswith("Question: What")
assert output["usage"]["total_tokens"] == output["usage"]["prompt_tokens"] + output["usage"]["completion_tokens"]
