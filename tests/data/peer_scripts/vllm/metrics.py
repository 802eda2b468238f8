from vllm import LLM, SamplingParams
from vllm.v1.metrics.reader import Counter, Gauge, Histogram


def main():
    llm = LLM(model="facebook/opt-125m", disable_log_stats=False)
    llm.generate(["Hello, my name is", "The capital of France is"], SamplingParams(temperature=0.8, top_p=0.95))
    for metric in llm.get_metrics():
        if isinstance(metric, Gauge | Counter):
            print(f"{metric.name} = {metric.value}")
        elif isinstance(metric, Histogram):
            print(f"{metric.name}: sum = {metric.sum}, count = {metric.count}")


if __name__ == "__main__":
    main()
