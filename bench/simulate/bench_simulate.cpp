#include "bench/simulate/bench_simulate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "bench/common/state_bytes.h"
#include "bench/simulate/simulate.h"
#include "cli/common.h"
#include "model/families/family.h"
#include "model/parameters.h"

namespace replayssm::bench {
namespace {

struct SimulateFlags {
  std::string config;
  std::string weights = "bf16";
  std::string results;
  std::string json;
  int gpus = 0;
  double memory_gb = 130;
  double share = 0;  // 0: by the weights' format
  std::vector<int64_t> batches = {1, 8, 32, 64, 128, 256, 512};
  std::vector<int64_t> contexts = {1024};
  std::vector<std::string> checkpoints = {"fp32", "fp16"};
};

std::string results_folder(const SimulateFlags& flags) {
  if (!flags.results.empty()) return flags.results;
  const std::filesystem::path built(REPLAYSSM_RESULTS_DIR);
  return std::filesystem::exists(built) ? built.string() : "bench/results";
}

void check(const SimulateFlags& flags) {
  if (flags.weights != "bf16" && flags.weights != "fp8") {
    throw cli::UsageError(concat("--weights ", flags.weights, ": must be bf16 or fp8"));
  }
}

// What was measured of layers of the model's kind, in the order of the table: of one with as many
// heads as the model's, else of the one of most batch sizes.
std::vector<LayerTime> layers_of(const ModelSpec& spec, const SimulateFlags& flags) {
  Family family{};
  int32_t n_heads = 0, value_dim = 0, key_dim = 0;
  for (const auto& layer : spec.layers) {
    for (const auto& mixer : layer.mixers) {
      if (const auto* m = std::get_if<Mamba2Spec>(&mixer)) {
        family = Family::kMamba2, n_heads = m->n_heads;
        value_dim = m->head_dim, key_dim = m->state_dim;
      } else if (const auto* g = std::get_if<GdnSpec>(&mixer)) {
        family = Family::kGdn, n_heads = g->n_value_heads;
        value_dim = g->value_dim, key_dim = g->key_dim;
      }
    }
  }
  std::set<DType> dtypes = {DType::kF32};  // of the denominator
  for (const auto& name : flags.checkpoints)
    dtypes.insert(cli::parse_dtype("--checkpoint", name, true));
  const std::string folder = results_folder(flags);
  std::vector<LayerTime> out;
  const std::vector<LayerTime> all = read_layer_times(folder);
  const auto worth = [&](const LayerTime& time) {
    return std::pair(time.n_heads == n_heads, time.us.size());
  };
  for (const StateMethod way : kStateMethods) {
    for (const LayerTime& time : all) {
      if (time.way != way || time.family != family || time.value_dim != value_dim ||
          time.key_dim != key_dim || !dtypes.contains(time.dtype)) {
        continue;
      }
      const auto same = std::find_if(out.begin(), out.end(), [&](const LayerTime& known) {
        return known.way == way && known.window == time.window && known.dtype == time.dtype;
      });
      if (same == out.end()) {
        out.push_back(time);
      } else if (worth(time) > worth(*same)) {
        *same = time;
      }
    }
  }
  const auto place = [](const LayerTime& time) {
    return std::tuple(std::find(std::begin(kStateMethods), std::end(kStateMethods), time.way),
                      time.dtype, time.window);
  };
  std::sort(out.begin(), out.end(),
            [&](const LayerTime& a, const LayerTime& b) { return place(a) < place(b); });
  const auto base = std::find_if(out.begin(), out.end(), [](const LayerTime& time) {
    return time.way == StateMethod::kPlain && time.dtype == DType::kF32 && time.window == 1;
  });
  if (base == out.end()) {
    fail(folder, ": holds no plain fp32 times of ", family_name(family), " layers of ", value_dim,
         " x ", key_dim);
  }
  std::rotate(out.begin(), base, base + 1);
  return out;
}

struct Row {
  const LayerTime* layer = nullptr;
  int64_t fits = 0;              // sequences
  std::vector<StepParts> steps;  // by batch
};

// "1 of T = 1, 3 of T = 4": what stands of a step was fixed when the layers were measured.
std::string accepted_of(const std::vector<LayerTime>& layers) {
  std::map<int32_t, double> accepted;
  for (const LayerTime& layer : layers) accepted[layer.window] = layer.accepted;
  std::string out;
  for (const auto& [window, count] : accepted) {
    char text[48];
    std::snprintf(text, sizeof(text), "%g of T = %d", count, window);
    out += (out.empty() ? "" : ", ") + std::string(text);
  }
  return out;
}

double tokens_per_second(const Row& row, int64_t batch, const StepParts& step) {
  return static_cast<double>(batch) * row.layer->accepted / step.total();
}

std::string label(const LayerTime& layer) {
  char text[64];
  std::snprintf(text, sizeof(text), "%-18s %2d %-5s", state_method_name(layer.way), layer.window,
                dtype_name(layer.dtype));
  return text;
}

void print_speeds(const std::vector<Row>& rows, const std::vector<int64_t>& batches) {
  std::printf("%-27s %9s", "state             T  dtype", "fit");
  for (const int64_t batch : batches) std::printf("  %15s", concat("batch ", batch).c_str());
  std::printf("\n");
  for (const Row& row : rows) {
    std::printf("%s %9lld", label(*row.layer).c_str(), static_cast<long long>(row.fits));
    for (size_t i = 0; i < batches.size(); ++i) {
      const double rate = tokens_per_second(row, batches[i], row.steps[i]);
      const double base = tokens_per_second(rows[0], batches[i], rows[0].steps[i]);
      char text[32] = "does not fit";
      if (batches[i] <= row.fits)
        std::snprintf(text, sizeof(text), "%.0f %.2fx", rate, rate / base);
      std::printf("  %15s", text);
    }
    std::printf("\n");
  }
}

void print_split(const std::vector<Row>& rows, const std::vector<int64_t>& batches) {
  size_t i = batches.size() - 1;
  while (i > 0 && batches[i] > rows[0].fits) --i;
  std::printf("ms a step at batch %lld: weights, state, KV, all-reduce, rest = all\n",
              static_cast<long long>(batches[i]));
  for (const Row& row : rows) {
    const StepParts& s = row.steps[i];
    std::printf("%s %8.2f %8.2f %8.2f %8.2f %8.2f = %8.2f\n", label(*row.layer).c_str(),
                s.weights * 1e3, s.state * 1e3, s.kv * 1e3, s.reduce * 1e3, s.rest * 1e3,
                s.total() * 1e3);
  }
}

nlohmann::json cells_of(const std::vector<Row>& rows, const std::vector<int64_t>& batches,
                        int64_t context) {
  auto out = nlohmann::json::array();
  for (const Row& row : rows) {
    for (size_t i = 0; i < batches.size(); ++i) {
      const StepParts& s = row.steps[i];
      const double rate = tokens_per_second(row, batches[i], s);
      const double base = tokens_per_second(rows[0], batches[i], rows[0].steps[i]);
      out.push_back({{"simulated", true},
                     {"way", state_method_name(row.layer->way)},
                     {"window", row.layer->window},
                     {"accepted", row.layer->accepted},
                     {"dtype", dtype_name(row.layer->dtype)},
                     {"batch", batches[i]},
                     {"context", context},
                     {"fits", row.fits},
                     {"tokens_per_second", rate},
                     {"over_plain", rate / base},
                     {"ms", s.total() * 1e3},
                     {"weights_ms", s.weights * 1e3},
                     {"weights_floor_ms", s.weights_floor * 1e3},
                     {"state_ms", s.state * 1e3},
                     {"kv_ms", s.kv * 1e3},
                     {"kv_floor_ms", s.kv_floor * 1e3},
                     {"reduce_ms", s.reduce * 1e3},
                     {"rest_ms", s.rest * 1e3}});
    }
  }
  return out;
}

// The fewest GPUs of a host whose memory takes the weights and a third as much again.
int gpus_for(const ModelSpec& spec, SimulatedMachine machine, bool fp8) {
  for (const int n : {1, 2, 4, 8}) {
    machine.n_gpus = n;
    if (weights_a_gpu(spec, machine, fp8) <= 0.75 * machine.memory_bytes) return n;
  }
  fail("--memory: the weights do not fit 8 GPUs of ", machine.memory_bytes / 1e9,
       " GB; set --gpus");
}

void run(const SimulateFlags& flags) {
  check(flags);
  const ModelSpec spec = describe_config(flags.config).spec;
  const std::vector<LayerTime> layers = layers_of(spec, flags);
  const bool fp8 = flags.weights == "fp8";
  SimulatedMachine machine;
  machine.memory_bytes = flags.memory_gb * 1e9;
  machine.product_share = flags.share > 0 ? flags.share : fp8 ? 0.5 : 0.7;
  machine.n_gpus = flags.gpus == 0 ? gpus_for(spec, machine, fp8) : flags.gpus;
  const double weights = weights_a_gpu(spec, machine, fp8);
  std::ofstream file;
  if (!flags.json.empty()) {
    file.open(flags.json);
    if (!file) fail(flags.json, ": cannot write");
  }

  std::printf("SIMULATED, not run: %s, %s weights, %d x %s, tensor parallel\n",
              flags.config.c_str(), flags.weights.c_str(), machine.n_gpus, layers[0].card.c_str());
  std::printf(
      "Recurrent layers as measured on one (%s). Taken: products at %.2f, attention at %.2f, small "
      "kernels at %.2f (and %.0f us each) of %.2f TB/s\nor %.0f TFLOP/s (FP8 twice). Assumed: an "
      "all-reduce a block at %.0f us and %.0f GB/s; drafting free; experts chosen evenly.\n",
      layers[0].date.c_str(), machine.product_share, machine.attention_share, machine.small_share,
      machine.launch * 1e6, machine.read_rate / 1e12, machine.product_rate / 1e12,
      machine.reduce_latency * 1e6, machine.link_rate / 1e9);
  std::printf("A GPU holds %s of weights.\n", cli::format_bytes(weights).c_str());
  nlohmann::json out = {{"simulated", true},
                        {"config", flags.config},
                        {"gpus", machine.n_gpus},
                        {"weights", flags.weights},
                        {"weights_bytes_a_gpu", weights},
                        {"assumed",
                         {{"product_share", machine.product_share},
                          {"attention_share", machine.attention_share},
                          {"small_kernel_share", machine.small_share},
                          {"read_bytes_per_second", machine.read_rate},
                          {"product_flops", machine.product_rate},
                          {"link_bytes_per_second", machine.link_rate},
                          {"reduce_latency_s", machine.reduce_latency},
                          {"launch_s", machine.launch}}},
                        {"cells", nlohmann::json::array()}};
  for (const LayerTime& layer : layers) out["measured"][layer.file] = layer.date;
  for (const int64_t context : flags.contexts) {
    std::vector<Row> rows;
    for (const LayerTime& layer : layers) {
      Row row{&layer, 0, {}};
      SimulatedStep step{1, context, fp8, &layer};
      const double left = machine.memory_bytes - weights;
      row.fits = static_cast<int64_t>(std::max(0.0, left / sequence_a_gpu(spec, machine, step)));
      for (const int64_t batch : flags.batches) {
        step.batch = batch;
        row.steps.push_back(simulate_step(spec, machine, step));
      }
      rows.push_back(std::move(row));
    }
    std::printf("\ncontext %lld: tokens/s, and over plain fp32 without drafts; a step keeps %s\n",
                static_cast<long long>(context), accepted_of(layers).c_str());
    print_speeds(rows, flags.batches);
    print_split(rows, flags.batches);
    for (auto& cell : cells_of(rows, flags.batches, context)) out["cells"].push_back(cell);
  }
  if (flags.json.empty()) return;
  file << out.dump(1) << "\n" << std::flush;
  if (!file) fail(flags.json, ": cannot write");
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* verb = app.add_subcommand(
      "simulate", "put a model over several GPUs together from measured layers: no run");
  verb->add_option("--config", flags->config, "a config.json, such as those of models/geometries")
      ->required();
  verb->add_option("--gpus", flags->gpus, "0: the fewest of 1, 2, 4, 8 that hold the weights")
      ->check(cli::in_range<int>(0, 64))
      ->capture_default_str();
  verb->add_option("--weights", flags->weights, "bf16 or fp8")->capture_default_str();
  verb->add_option("--batch", flags->batches, "sequences")
      ->check(cli::in_range<int64_t>(1, 65536))
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--context", flags->contexts, "tokens a sequence")
      ->check(cli::in_range<int64_t>(1, cli::kMaxPositions))
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--checkpoint", flags->checkpoints, "dtypes of states and checkpoints")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--memory", flags->memory_gb, "GB of a GPU for weights and sequences")
      ->check(cli::in_range<double>(1, cli::kMaxGigabytes))
      ->capture_default_str();
  verb->add_option(
          "--share", flags->share,
          "of the rates of memory and tensor cores that products reach; 0: 0.7 in bf16, 0.5 in "
          "FP8")
      ->check(cli::in_range<double>(0, 1))
      ->capture_default_str();
  verb->add_option("--results", flags->results, "measured layers (default: bench/results)");
  verb->add_option("--json", flags->json, "also write the figures to this file");
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::bench
