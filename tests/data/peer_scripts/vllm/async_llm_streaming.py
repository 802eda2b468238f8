import asyncio

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def stream_response(engine: AsyncLLM, prompt: str, request_id: str) -> str:
    sampling_params = SamplingParams(max_tokens=20, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA)
    parts = []
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
        for completion in output.outputs:
            parts.append(completion.text)
        if output.finished:
            break
    return "".join(parts)


async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="facebook/opt-125m", enforce_eager=True))
    try:
        prompts = ["The future of artificial intelligence is", "In a galaxy far, far away"]
        texts = [await stream_response(engine, prompt, f"stream-example-{i}") for i, prompt in enumerate(prompts, 1)]
        print(texts)
        assert all(texts)
        assert texts[0] == await stream_response(engine, prompts[0], "again")
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
