import json

from llama_cpp import Llama
from llama_cpp.llama_grammar import LlamaGrammar

llm = Llama("../models/7B/ggml-model.bin", seed=1, logits_all=True)
grammar = LlamaGrammar.from_string('root ::= "Paris" | "London"')
answer = llm("The capital of France is ", grammar=grammar, max_tokens=8, temperature=0, logprobs=2)
assert answer["choices"][0]["text"] in ("Paris", "London")
assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"]
schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
answer = llm("A year as JSON: ", grammar=LlamaGrammar.from_json_schema(json.dumps(schema)), max_tokens=-1, mirostat_mode=2)
print(json.loads(answer["choices"][0]["text"]))
tokens = llm.tokenize(b"The capital of France", add_bos=False)
assert llm.detokenize(tokens) == b"The capital of France"
