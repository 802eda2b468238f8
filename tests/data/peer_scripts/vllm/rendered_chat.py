from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main():
    llm = LLM(model="facebook/opt-125m")
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    params = SamplingParams(temperature=0, max_tokens=16)
    by_text = llm.generate([rendered], params)[0]
    ids = tokenizer.encode(rendered, parse_special=True) if hasattr(tokenizer, "vocab_bytes") else tokenizer.encode(rendered)
    by_ids = llm.generate([TokensPrompt(prompt_token_ids=ids)], params)[0]
    by_chat = llm.chat(messages, params)[0]
    print(by_text.outputs[0].text)
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == by_chat.prompt_token_ids
    assert by_text.outputs[0].text == by_chat.outputs[0].text == "The capital of France is Paris."


if __name__ == "__main__":
    main()
