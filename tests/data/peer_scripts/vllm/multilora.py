from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.lora.request import LoRARequest


def main():
    engine = LLMEngine.from_engine_args(EngineArgs(model="facebook/opt-125m", enable_lora=True, max_loras=1, max_lora_rank=8))
    engine.add_request("0", "A robot may not injure a human being", SamplingParams(temperature=0.0), lora_request=LoRARequest("a", 1, "."))
    while engine.has_unfinished_requests():
        print(engine.step())


if __name__ == "__main__":
    main()
