from llama_cpp import Llama

llm = Llama(model_path="../models/7B/ggml-model.bin", embedding=True)
print(llm.create_embedding("Hello world!"))
