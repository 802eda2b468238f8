from dataclasses import asdict

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser


def create_parser():
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="facebook/opt-125m")
    group = parser.add_argument_group("Sampling parameters")
    group.add_argument("--max-tokens", type=int)
    group.add_argument("--top-p", type=float)
    return parser


def main(args):
    max_tokens = args.pop("max_tokens")
    top_p = args.pop("top_p")
    llm = LLM(**args)
    sampling_params = llm.get_default_sampling_params()
    if max_tokens is not None:
        sampling_params.max_tokens = max_tokens
    if top_p is not None:
        sampling_params.top_p = top_p
    conversation = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {"role": "user", "content": "Write one sentence about higher education."},
    ]
    one = llm.chat(conversation, sampling_params, use_tqdm=False)
    several = llm.chat([conversation for _ in range(3)], sampling_params, use_tqdm=True)
    assert len(one) == 1 and len(several) == 3
    for output in one + several:
        assert len(output.outputs[0].token_ids) <= (max_tokens or 16)
        print(output.outputs[0].text)


if __name__ == "__main__":
    assert asdict(EngineArgs(model="m"))["seed"] == 0
    main(vars(create_parser().parse_args(["--max_model_len", "512", "--max-tokens", "12", "--enforce-eager"])))
