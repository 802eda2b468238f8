#include "engine/rank_worker.h"

#include <algorithm>
#include <cstring>

#include "core/errors.h"
#include "core/fp_env.h"
#include "engine/open_engine.h"
#include "engine/sizing.h"
#include "model/batch_bytes.h"
#include "model/loader.h"

namespace llmi {
namespace {

// Rank 0's facts go from stage to stage, each adds its own, and come back to rank 0. Returns what this one has seen.
std::vector<RankFacts> ExchangeWithStages(StageLink& link, const Ranks& ranks, const std::vector<RankFacts>& own) {
  std::vector<RankFacts> facts;
  const auto receive = [&] {
    const std::vector<uint8_t> bytes = link.Receive();
    CheckArgument(bytes.size() % sizeof(RankFacts) == 0, "stages: facts of another form");
    facts.resize(bytes.size() / sizeof(RankFacts));
    std::memcpy(facts.data(), bytes.data(), bytes.size());
  };
  if (ranks.plan().stage() > 0) receive();
  facts.insert(facts.end(), own.begin(), own.end());
  for (size_t rank = 1; rank < own.size(); ++rank) ranks.group().Watch(static_cast<int>(rank), own[rank].pid);
  link.Send(BytesOf(std::span<const RankFacts>(facts)));
  if (ranks.plan().stage() == 0) receive();
  return facts;
}

// The group's facts, one after the other.
void CheckIdentities(const std::vector<RankFacts>& facts) {
  for (size_t rank = 1; rank < facts.size(); ++rank) {
    if (std::memcmp(facts[rank].identity, facts[0].identity, sizeof facts[0].identity) == 0) continue;
    throw Error(ErrorKind::kModelFile, "rank " + std::to_string(rank) + " (" + facts[rank].host + ", process " +
                                           std::to_string(facts[rank].pid) + ") has another file, version or arithmetic than rank 0 (" +
                                           facts[0].host + ", process " + std::to_string(facts[0].pid) + ")");
  }
}

// Takes part until rank 0 has gone.
void FollowCalls(const KernelContext& context, Decoder& decoder, KvCache& cache) {
  try {
    for (;;) decoder.ranks()->group().link() == nullptr ? decoder.Follow(context, cache) : decoder.FollowStage(context, cache);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kWorkerDied) throw;
    decoder.ranks()->group().Leave(error.what());  // the stages behind hear it, too
  }
}

}  // namespace

std::unique_ptr<Ranks> RanksOf(const EngineOptions& options, const ModelSpec& spec) {
  if (options.ranks == nullptr) return nullptr;
  return std::make_unique<Ranks>(options.ranks,
                                 RankPlan(spec, options.ranks->size(), options.tensor_split, options.stage, options.num_stages));
}

std::vector<RankFacts> ExchangeFacts(Decoder& decoder, const EngineOptions& options, Device* device) {
  Ranks& ranks = *decoder.ranks();
  const std::string& identity = options.identity;
  std::vector<RankFacts> facts(static_cast<size_t>(ranks.plan().num_ranks()));
  RankFacts& own = facts[static_cast<size_t>(ranks.rank())];
  CheckArgument(identity.size() < sizeof own.identity, "identity: at most 71 letters");
  std::memcpy(own.identity, identity.data(), identity.size());
  own.weight_bytes = decoder.weights().num_bytes();
  own.step_weight_bytes = decoder.weights().num_step_bytes();
  own.stage = ranks.plan().stage();
  for (size_t number = 0; number < decoder.spec().layers.size(); ++number) {
    const LayerSpec& layer = decoder.spec().layers[number];
    if (!ranks.plan().Holds(static_cast<int64_t>(number))) continue;
    own.query_heads += ranks.QueryHeads(layer.attention).size();
    own.kv_heads += ranks.KvHeads(layer.attention).size();
  }
  own.hidden = ranks.plan().Hidden(ranks.rank()).size();
  own.vocabulary = ranks.Vocabulary().size();
  if (device != nullptr) own.free_bytes = DeviceCacheBytes(device->total_bytes(), device->free_bytes(), options.gpu_memory_utilization);
  const RankGroup::Member member = ranks.group().member(ranks.rank());
  own.pid = member.pid;
  std::memcpy(own.host, member.host.data(), std::min(member.host.size(), sizeof own.host - 1));
  std::vector<RankGroup::Block> blocks;
  for (int rank = 0; rank < ranks.plan().num_ranks(); ++rank) {
    blocks.push_back({rank, rank * static_cast<int64_t>(sizeof(RankFacts)), static_cast<int64_t>(sizeof(RankFacts))});
  }
  ranks.group().Gather(facts.data(), blocks);
  if (StageLink* link = ranks.group().link()) facts = ExchangeWithStages(*link, ranks, facts);
  CheckIdentities(facts);
  ranks.JoinDevice(device);
  return facts;
}

void BeginRanks(const Ranks& ranks, RankStart start) {
  ranks.group().Tell(&start, sizeof start);
  if (StageLink* link = ranks.group().link()) {
    link->Send(BytesOf(std::span<const RankStart>(&start, 1)));
    link->Receive();  // it has come to all
  }
}

void RestartRanks(Decoder& decoder, const EngineOptions& options, Device* device, RankStart start) {
  if (!options.restart_ranks) return;
  Ranks& ranks = *decoder.ranks();
  EngineOptions kept = options;
  kept.ranks = nullptr;  // the group that ends
  ranks.set_restart([&decoder, &ranks, start, device, options = std::move(kept)](const std::string& reason) {
    ranks.Renew(options.restart_ranks(reason));
    ranks.group().set_on_wait([&] { ranks.CheckWait(); });
    ExchangeFacts(decoder, options, device);
    BeginRanks(ranks, start);
    ranks.group().set_on_wait(nullptr);
  });
}

void ServeRank(const ModelFiles& files, const EngineOptions& options) {
  const FloatEnvironmentGuard guard;
  RankGroup& group = *options.ranks;
  try {
    const std::unique_ptr<Device> device = OpenDevice(options);
    KernelContext context = ContextOf(options, device.get());
    ModelSpec spec = ParseSpec(options.spec, files.path());
    ModelSpec model = spec;
    KeepLayers(options.layers, &model);
    const std::unique_ptr<Decoder> decoder =
        LoadDecoder(context, files, std::move(spec), options.weights, options.layers, nullptr, nullptr, RanksOf(options, model));
    context.wide_activations = context.wide_activations && decoder->weights().HasQuantizedLayers();
    if (device != nullptr) {
      const int64_t num_logits_rows = LogitsRowsAtOnce(model.vocab_size, true);
      decoder->Reserve(context, StepRows(options.scheduler), Decoder::PaddedRows(num_logits_rows));
      device->ReserveWorkspace(Decoder::PaddedRows(num_logits_rows), model.vocab_size);
    }
    ExchangeFacts(*decoder, options, device.get());
    RankStart start;
    StageLink* link = group.link();
    if (link != nullptr) {
      const std::vector<uint8_t> bytes = link->Receive();
      CheckArgument(bytes.size() == sizeof start, "stages: a start of another form");
      std::memcpy(&start, bytes.data(), sizeof start);
    }
    group.Tell(&start, sizeof start);
    if (link != nullptr) link->Send(BytesOf(std::span<const RankStart>(&start, 1)));
    EngineConfig config;
    config.block_size = options.block_size;
    config.kv_type = options.kv_type;
    config.draft_kv = start.draft;
    config.draft_kv.held = false;
    if (device != nullptr) decoder->ReservePositions(context, start.max_model_len);
    KvCache cache(GroupsOf(model, config, &decoder->ranks()->plan(), group.rank()), start.num_pages, device.get(),
                  RankStates(decoder->state_sizes(), start.states));
    FollowCalls(context, *decoder, cache);
  } catch (const std::exception& error) {
    group.Leave(error.what());
    throw;
  }
}

}  // namespace llmi
