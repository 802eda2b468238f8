from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

llama = Llama(model_path="../models/7B/ggml-model.bin", draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10), n_gpu_layers=0)
plain = Llama(model_path="../models/7B/ggml-model.bin")
prompt = "One, two, three, four. One, two, three, four. One, two,"
drafted = llama.create_completion(prompt, max_tokens=32, temperature=0.8, seed=1, repeat_penalty=1.1)
assert drafted["choices"] == plain.create_completion(prompt, max_tokens=32, temperature=0.8, seed=1, repeat_penalty=1.1)["choices"]
print(drafted["choices"][0]["text"])
