// replayssm inspect: what a model is and what its sequences cost.
#include <cstdio>

#include "cli/common.h"
#include "model/parameters.h"

namespace replayssm::cli {
namespace {

struct InspectFlags {
  ModelFlags model;
  std::string config;
  double memory_gb = 0;
  int64_t context = 4096;
  int window = 1;
};

const char* mixer_name(const MixerSpec& mixer) {
  if (std::holds_alternative<Mamba2Spec>(mixer)) return "Mamba-2";
  if (std::holds_alternative<GdnSpec>(mixer)) return "GDN";
  if (std::holds_alternative<AttentionSpec>(mixer)) return "attention";
  if (std::holds_alternative<MlpSpec>(mixer)) return "MLP";
  return "MoE";
}

std::string geometry(const MixerSpec& mixer) {
  if (const auto* m = std::get_if<Mamba2Spec>(&mixer)) {
    return concat(m->n_heads, " heads x ", m->head_dim, " x ", m->state_dim, ", ", m->n_groups,
                  " groups, conv ", m->conv_width);
  }
  if (const auto* g = std::get_if<GdnSpec>(&mixer)) {
    return concat(g->n_key_heads, " key, ", g->n_value_heads, " value heads, ", g->key_dim, " x ",
                  g->value_dim, ", conv ", g->conv_width);
  }
  if (const auto* a = std::get_if<AttentionSpec>(&mixer)) {
    return concat(a->n_heads, " heads, ", a->n_kv_heads, " kv, dim ", a->head_dim, ", rotary ",
                  a->rotary_dims);
  }
  if (const auto* mlp = std::get_if<MlpSpec>(&mixer)) return concat("ff ", mlp->ff);
  const auto& moe = std::get<MoeSpec>(mixer);
  return concat(moe.top_k, " of ", moe.n_experts, " experts, ff ", moe.ff, ", shared ",
                moe.shared_ff, moe.latent > 0 ? concat(", latent ", moe.latent) : "");
}

// One line for each kind of mixer: how many, and the first one's geometry.
void print_mixers(const ModelSpec& spec) {
  for (const char* name : {"Mamba-2", "GDN", "attention", "MLP", "MoE"}) {
    int count = 0;
    const MixerSpec* first = nullptr;
    for (const auto& layer : spec.layers) {
      for (const auto& mixer : layer.mixers) {
        if (std::string(mixer_name(mixer)) != name) continue;
        if (first == nullptr) first = &mixer;
        ++count;
      }
    }
    if (count > 0) std::printf("  %-10s %d: %s\n", name, count, geometry(*first).c_str());
  }
}

void run(const InspectFlags& flags) {
  const bool shape_only = !flags.config.empty();
  if (shape_only && !flags.model.folder.empty()) throw UsageError("--config: not with --model");
  const ModelOptions options = flags.model.options(flags.window, "--window");
  const std::string path = shape_only ? flags.config : flags.model.folder_or_default();
  const auto model = shape_only ? Model::of(describe_config(path), DType::kBF16, options)
                                : Model::load(path, options);
  const ModelSpec& spec = model->spec();
  const ParameterCount count = count_parameters(spec);
  ThreadPool pool(1);
  const ops::Context context(pool);
  ModelMemory m = cpu_device(context)->memory(*model);
  if (shape_only) m.weights = weight_bytes(count, false);
  const auto bytes = [](int64_t n) { return format_bytes(static_cast<double>(n)); };
  std::printf("%s\n", path.c_str());
  std::printf("  type       %s, hidden %lld, vocab %lld, %zu layers, context %lld%s\n",
              spec.model_type.c_str(), static_cast<long long>(spec.hidden),
              static_cast<long long>(spec.vocab), spec.layers.size(),
              static_cast<long long>(spec.max_positions), spec.tied ? ", tied" : "");
  print_mixers(spec);
  std::printf("  parameters %.3f M, %.3f M read for a token\n",
              static_cast<double>(count.total) / 1e6, static_cast<double>(count.active) / 1e6);
  std::printf(
      "  weights    %s%s\n", bytes(m.weights).c_str(),
      shape_only ? concat(" in bf16, ", bytes(weight_bytes(count, true)), " in FP8").c_str() : "");
  std::printf("  activation %s, checkpoint %s, ring %s, grid %d\n", dtype_name(model->activation()),
              dtype_name(model->checkpoint()), dtype_name(model->ring()), model->grid().interval);
  std::printf("a sequence\n");
  std::printf("  checkpoint %s\n", bytes(m.checkpoint_slot).c_str());
  std::printf("  ring       %s (%d rows of %s)\n", bytes(m.ring_slot).c_str(),
              model->grid().ring_rows, bytes(m.ring_token).c_str());
  std::printf("  conv ring  %s\n", bytes(m.conv_slot).c_str());
  std::printf("  KV         %s a token\n", bytes(m.kv_token).c_str());
  const int64_t pages = ops::pages_for(flags.context);
  const double sequence = static_cast<double>(m.checkpoint_slot + m.ring_slot + m.conv_slot) +
                          static_cast<double>(pages) * static_cast<double>(m.kv_page);
  std::printf("  in all     %s at %lld tokens of context\n", format_bytes(sequence).c_str(),
              static_cast<long long>(flags.context));
  if (flags.memory_gb > 0) {
    const double left = flags.memory_gb * 1e9 - static_cast<double>(m.weights);
    const double fit = left < 0 ? 0 : left / sequence;
    std::printf("%lld sequences of %lld tokens fit in %.3g GB\n", static_cast<long long>(fit),
                static_cast<long long>(flags.context), flags.memory_gb);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* verb = app.add_subcommand("inspect", "show what a model is and what it costs");
  flags->model.add_folder(*verb);
  flags->model.add_numerics(*verb);
  verb->add_option(
      "--config", flags->config,
      "a config.json alone, such as models/geometries/qwen3.5-35b-a3b.json: no weights "
      "are read");
  verb->add_option("--memory", flags->memory_gb, "GB: how many sequences fit")
      ->check(in_range<double>(0, kMaxGigabytes));
  verb->add_option("--context", flags->context, "tokens a sequence")
      ->check(in_range<int64_t>(1, kMaxPositions))
      ->capture_default_str();
  verb->add_option("--window", flags->window, "longest step: drafts + 1")
      ->check(in_range<int>(1, kMaxDrafts + 1))
      ->capture_default_str();
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::cli
