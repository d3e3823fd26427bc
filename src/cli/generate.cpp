// replayssm generate: text from a prompt, with or without drafts.
#include "runtime/generate.h"

#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "model/model_source.h"

namespace replayssm::cli {
namespace {

struct GenerateFlags {
  ModelFlags model;
  std::string prompt;
  int64_t n = 128;
  double temperature = 0;
  int top_k = 0;
  double top_p = 1;
  double min_p = 0;
  std::string seed = "0";
  std::string draft = "off";
  int draft_tokens = 4;
  DeviceFlags device;
  bool json = false;
};

ops::SamplerParams sampling_of(const GenerateFlags& flags) {
  if (flags.top_p == 0) throw UsageError("--top-p: must be more than 0");
  ops::SamplerParams params;
  params.temperature = static_cast<float>(flags.temperature);
  params.top_k = flags.top_k;
  params.top_p = static_cast<float>(flags.top_p);
  params.min_p = static_cast<float>(flags.min_p);
  params.seed = parse_seed("--seed", flags.seed);
  return params;
}

struct MemoryUse {
  int64_t weights, checkpoints, rings, conv, kv, scratch, drafter;
};

MemoryUse memory_of(const Runner& runner, const Drafter* drafter) {
  const ModelMemory& m = runner.memory();
  return {m.weights,
          m.checkpoint_slot,
          m.ring_slot,
          m.conv_slot,
          runner.state_bytes() - m.checkpoint_slot - m.ring_slot - m.conv_slot,
          runner.scratch_bytes(),
          drafter == nullptr ? 0 : drafter->bytes()};
}

double ratio(double a, double b) { return b == 0 ? 0 : a / b; }

void report(const GenerateStats& s, const MemoryUse& memory, bool drafts) {
  const double tokens = static_cast<double>(s.new_tokens);
  std::fprintf(stderr, "\nprefill  %lld tokens, %.0f tokens/s\n",
               static_cast<long long>(s.prompt_tokens),
               ratio(static_cast<double>(s.prompt_tokens), s.prefill_seconds));
  std::fprintf(stderr, "decode   %lld tokens, %.0f tokens/s\n",
               static_cast<long long>(s.new_tokens), ratio(tokens, s.decode_seconds));
  if (drafts) {
    std::fprintf(stderr, "drafts   %.2f accepted a step (%lld of %lld proposed, %lld steps)\n",
                 ratio(static_cast<double>(s.accepted), static_cast<double>(s.steps)),
                 static_cast<long long>(s.accepted), static_cast<long long>(s.drafted),
                 static_cast<long long>(s.steps));
  }
  const StateTraffic& t = s.decode_traffic;
  std::fprintf(stderr, "state    %s read, %s written a token; plain decoding %s\n",
               format_bytes(ratio(static_cast<double>(t.read), tokens)).c_str(),
               format_bytes(ratio(static_cast<double>(t.written), tokens)).c_str(),
               format_bytes(ratio(static_cast<double>(t.plain), tokens)).c_str());
  std::fprintf(stderr, "memory   weights %s, checkpoint %s, ring %s, conv %s, KV %s, scratch %s",
               format_bytes(static_cast<double>(memory.weights)).c_str(),
               format_bytes(static_cast<double>(memory.checkpoints)).c_str(),
               format_bytes(static_cast<double>(memory.rings)).c_str(),
               format_bytes(static_cast<double>(memory.conv)).c_str(),
               format_bytes(static_cast<double>(memory.kv)).c_str(),
               format_bytes(static_cast<double>(memory.scratch)).c_str());
  if (memory.drafter > 0) {
    std::fprintf(stderr, ", drafter %s", format_bytes(static_cast<double>(memory.drafter)).c_str());
  }
  std::fprintf(stderr, "\n");
}

nlohmann::json stats_json(const GenerateStats& s, const MemoryUse& memory, int64_t n_saturated) {
  const StateTraffic& t = s.decode_traffic;
  return {{"prompt_tokens", s.prompt_tokens},
          {"new_tokens", s.new_tokens},
          {"steps", s.steps},
          {"drafted", s.drafted},
          {"accepted", s.accepted},
          {"drafted_by_depth", s.drafted_by_depth},
          {"accepted_by_depth", s.accepted_by_depth},
          {"prefill_seconds", s.prefill_seconds},
          {"decode_seconds", s.decode_seconds},
          {"state_bytes_read", t.read},
          {"state_bytes_written", t.written},
          {"state_bytes_plain", t.plain},
          {"saturated", n_saturated},
          {"memory",
           {{"weights", memory.weights},
            {"checkpoint", memory.checkpoints},
            {"ring", memory.rings},
            {"conv", memory.conv},
            {"kv", memory.kv},
            {"scratch", memory.scratch},
            {"drafter", memory.drafter}}}};
}

std::unique_ptr<Drafter> make_drafter(const GenerateFlags& flags, const ModelOptions& options,
                                      const Model& target, const Device& device,
                                      const ops::Context& context, int64_t max_positions,
                                      const ops::SamplerParams& sampling) {
  if (flags.draft == "off" || flags.draft == "mtp") return nullptr;
  if (flags.draft == "ngram") return make_ngram_drafter();
  if (flags.draft.starts_with("script:")) {
    return make_script_drafter(flags.draft.substr(7), target.spec().vocab);
  }
  auto model = load_draft_model(flags.draft, options, target);
  return make_model_drafter(std::move(model), device, context, max_positions, sampling);
}

void run(const GenerateFlags& flags) {
  const bool drafts = flags.draft != "off";
  if (flags.draft.empty() || flags.draft == "script:") {
    throw UsageError(concat("--draft \"", flags.draft, "\": names no folder or file"));
  }
  const ops::SamplerParams sampling = sampling_of(flags);
  ModelOptions options = flags.model.options(drafts ? flags.draft_tokens + 1 : 1, "--draft-tokens");
  options.mtp = flags.draft == "mtp";
  const std::string path = flags.model.path_or_default();

  ThreadPool pool(flags.model.threads);
  const ops::Context context(pool);
  const auto device = flags.device.open(context);
  const auto model = Model::load(path, options);
  const auto tokenizer = read_tokenizer(path);
  const std::vector<int32_t> prompt = tokenizer.encode_prompt(flags.prompt);
  if (prompt.empty()) throw UsageError("-p: the prompt is empty; give it some text");
  check_text("-p", prompt, model->spec().vocab, model->spec().max_positions);

  RunnerLimits limits;
  limits.max_positions =
      std::min(model->spec().max_positions, static_cast<int64_t>(prompt.size()) + flags.n);
  limits.max_logits = drafts ? flags.draft_tokens + 1 : 1;
  Runner runner(model, *device, limits);
  ops::Sampler sampler(context, model->spec().vocab);
  const auto drafter =
      make_drafter(flags, options, *model, *device, context, limits.max_positions, sampling);

  GenerateParams params;
  params.max_new_tokens = flags.n;
  params.draft_tokens = flags.draft_tokens;
  params.mtp = options.mtp;
  params.sampling = sampling;
  params.stop_ids = model->spec().eos_ids;
  add_end_tokens(path, tokenizer, model->spec().vocab, params.stop_ids);

  std::vector<int32_t> ids;
  std::string text;
  model::StreamDecoder decoder(tokenizer, /*skip_special=*/true);
  const auto emit = [&](const std::string& part) {
    text += part;
    std::fwrite(part.data(), 1, part.size(), stdout);
    std::fflush(stdout);
  };
  const GenerateStats stats =
      generate(runner, sampler, drafter.get(), prompt, params, [&](int32_t id) {
        ids.push_back(id);
        emit(decoder.push(id));
      });
  emit(decoder.finish());
  std::printf("\n");
  const MemoryUse memory = memory_of(runner, drafter.get());
  if (flags.json) {
    const nlohmann::json out = {
        {"text", text}, {"ids", ids}, {"stats", stats_json(stats, memory, runner.n_saturated())}};
    std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  std::fflush(stdout);
  report(stats, memory, drafts);
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* verb = app.add_subcommand("generate", "continue a text");
  flags->model.add_path(*verb);
  verb->add_option("-p,--prompt", flags->prompt, "the text to continue")->required();
  verb->add_option("-n", flags->n, "new tokens at most")
      ->check(in_range<int64_t>(1, kMaxPositions))
      ->capture_default_str();
  verb->add_option("--temperature", flags->temperature, "0: greedy")
      ->check(in_range<double>(0, 100))
      ->capture_default_str();
  verb->add_option("--top-k", flags->top_k, "0: all")
      ->check(in_range<int>(0, std::numeric_limits<int>::max()))
      ->capture_default_str();
  verb->add_option("--top-p", flags->top_p, "the likeliest tokens that hold this much; 1: all")
      ->check(in_range<double>(0, 1))
      ->capture_default_str();
  verb->add_option("--min-p", flags->min_p,
                   "no token less likely than this times the likeliest; 0: all")
      ->check(in_range<double>(0, 1))
      ->capture_default_str();
  verb->add_option("--seed", flags->seed, "of the draws, with --temperature")
      ->capture_default_str();
  verb->add_option("--draft", flags->draft,
                   "off, ngram, mtp (the model's own head), a model folder, or script:FILE")
      ->capture_default_str();
  verb->add_option("--draft-tokens", flags->draft_tokens, "drafts a step at most")
      ->check(in_range<int>(1, kMaxDrafts))
      ->capture_default_str();
  flags->device.add(*verb);
  flags->model.add_numerics(*verb);
  flags->model.add_threads(*verb);
  verb->add_flag("--json", flags->json, "last line of stdout: text, ids and stats");
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::cli
