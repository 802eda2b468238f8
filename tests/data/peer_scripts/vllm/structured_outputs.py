import json

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

MAX_TOKENS = 50

sampling_params_choice = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["Positive", "Negative"]))
sampling_params_regex = SamplingParams(
    structured_outputs=StructuredOutputsParams(regex=r"\w+@\w+\.com\n"), stop=["\n"], max_tokens=MAX_TOKENS
)
schema = {"type": "object", "properties": {"brand": {"enum": ["Ford", "Audi"]}, "year": {"type": "integer"}}, "required": ["brand", "year"]}
sampling_params_json = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema), max_tokens=MAX_TOKENS, temperature=0)
grammar = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
sampling_params_grammar = SamplingParams(structured_outputs=StructuredOutputsParams(grammar=grammar), max_tokens=MAX_TOKENS)


def generate_output(prompt, sampling_params, llm):
    outputs = llm.generate(prompts=prompt, sampling_params=sampling_params)
    return outputs[0].outputs[0].text


def main():
    llm = LLM(model="facebook/opt-125m", max_model_len=100)
    assert generate_output("Classify this sentiment: vLLM is wonderful!", sampling_params_choice, llm) in ("Positive", "Negative")
    print(generate_output("Generate an email address for Alan Turing. End in .com and new line.", sampling_params_regex, llm))
    car = json.loads(generate_output("Generate a JSON with the brand and year of a car.", sampling_params_json, llm))
    assert car["brand"] in ("Ford", "Audi")
    assert generate_output("Generate an SQL query.", sampling_params_grammar, llm).startswith("SELECT col_")


if __name__ == "__main__":
    main()
