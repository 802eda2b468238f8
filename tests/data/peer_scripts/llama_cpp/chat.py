import json

from llama_cpp import Llama

llm = Llama(model_path="../models/7B/ggml-model.bin", n_ctx=1024)
messages = [{"role": "user", "content": "What is the capital of France?"}]
answer = llm.create_chat_completion(messages=messages, temperature=0)
print(answer["choices"][0]["message"]["content"])
assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
text = ""
for chunk in llm.create_chat_completion(messages=messages, temperature=0, stream=True):
    delta = chunk["choices"][0]["delta"]
    if "role" in delta:
        print(delta["role"], end=": ")
    elif "content" in delta:
        text += delta["content"]
assert text == answer["choices"][0]["message"]["content"]
schema = {"type": "object", "properties": {"team_name": {"type": "string", "maxLength": 20}}, "required": ["team_name"]}
answer = llm.create_chat_completion(
    messages=[
        {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
        {"role": "user", "content": "Who won the world series in 2020"},
    ],
    response_format={"type": "json_object", "schema": schema},
    temperature=0.7,
    max_tokens=64,
)
assert "team_name" in json.loads(answer["choices"][0]["message"]["content"])
