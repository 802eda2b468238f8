// Opens an engine without Python, generates several continuations of a prompt, and extends a fork of the prompt's sequence.
//
//     open_engine MODEL.gguf SPEC.json cpu|emulated
//
// SPEC.json: the model's spec, as the family's card writes it (csrc/model/spec.h).
// Prints "tokens" and the ids of each continuation, then "logits" and the bits of the fork's last row in hexadecimal. The same calls from
// Python give the same numbers (tests/api/test_open_engine.py).
#include <bit>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/errors.h"
#include "engine/lab.h"
#include "engine/open_engine.h"
#include "engine/request.h"
#include "io/input_file.h"

namespace llmi {
namespace {

const std::vector<int32_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};

void Generate(Engine& engine) {
  auto request = std::make_shared<Request>();
  request->prompt_token_ids = kPrompt;
  request->num_samples = 3;
  request->params.temperature = 0.9;
  request->params.seed = 2;
  request->params.max_tokens = 24;
  request->params.ignore_eos = true;
  request->params.detokenize = false;
  const auto channel = std::make_shared<OutputChannel>();
  engine.Check(*request);
  engine.Submit({request}, channel);
  for (bool finished = false; !finished;) {
    channel->Wait(1.0);
    for (const OutputEvent& event : channel->TakeAll()) finished |= event.finished;
  }
  if (request->error) throw Error(*request->error);
  for (const SampleOutput& sample : request->samples) {
    std::printf("tokens");
    for (const int32_t token : sample.token_ids) std::printf(" %d", token);
    std::printf("\n");
  }
}

// The fork gets other tokens than the sequence that it was forked from; its logits must not depend on that.
void Fork(Engine& engine) {
  const auto sequence = std::make_shared<LabSequence>();
  sequence->tokens = kPrompt;
  engine.lab().Extend({{sequence, {}, {}, false, true}});
  const auto fork = std::make_shared<LabSequence>();
  engine.lab().Fork(sequence, fork);
  const std::vector<LabResult> results = engine.lab().Extend({{sequence, {20, 21}, {}, false, false}, {fork, {30}, {}, false, false}});
  std::printf("logits");
  for (const float value : results[1].logits) std::printf(" %08x", std::bit_cast<uint32_t>(value));
  std::printf("\n");
  engine.lab().Close(sequence);
  engine.lab().Close(fork);
}

void Run(const std::string& path, const std::string& spec, const std::string& device) {
  EngineOptions options;
  options.spec = InputFile(spec).ReadAll(1 << 20);
  options.device = ParseDeviceKind(device);
  options.scheduler.max_num_batched_tokens = 16;  // shorter than the prompt, which is cut
  options.kv_cache_memory_bytes = int64_t{1} << 23;
  options.max_model_len = 256;
  options.audit_each_step = true;
  const ModelFiles files(path);
  const std::unique_ptr<OpenedEngine> opened = OpenEngine(files, options);
  opened->Start({});
  Generate(*opened->engine());
  Fork(*opened->engine());
  CheckInternal(opened->engine()->Stats().audit.empty(), "the cache is not clean");
}

}  // namespace
}  // namespace llmi

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: open_engine MODEL.gguf SPEC.json cpu|emulated\n");
    return 2;
  }
  try {
    llmi::Run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
