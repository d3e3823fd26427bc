// State handled plainly, with snapshots and by replay. A table on stdout, progress on stderr, JSON
// to a file.
#include "bench/layers/bench_layers.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/baselines/plain_device.h"
#include "bench/common/state_bytes.h"
#include "bench/layers/time_layer.h"
#include "cli/common.h"
#include "runtime/runner.h"

namespace replayssm::bench {
namespace {

struct BenchFlags {
  cli::ModelFlags model;
  std::string what = "all";
  std::vector<int> batches = {1, 8, 64};
  std::vector<int> windows = {1, 4, 8};
  std::string json;
};

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void progress(const std::string& text) { std::fprintf(stderr, "bench: %s\n", text.c_str()); }

struct Variant {
  StateMethod way;
  DType dtype;
};

std::vector<Variant> variants(int window) {
  return {{window == 1 ? StateMethod::kPlain : StateMethod::kSnapshots, DType::kF32},
          {window == 1 ? StateMethod::kPlain : StateMethod::kSnapshots, DType::kF16},
          {StateMethod::kReplay, DType::kF32},
          {StateMethod::kReplay, DType::kF16},
          {StateMethod::kReplay, DType::kI8}};
}

nlohmann::json bench_layers(const BenchFlags& flags, ThreadPool& pool, double bandwidth) {
  nlohmann::json out = nlohmann::json::array();
  std::printf("%-27s %5s %2s  %-9s %-5s %9s %8s %8s %7s\n", "layer", "batch", "T", "state", "dtype",
              "us", "GB/s", "of read", "speed-up");
  for (const LayerGeometry& geometry : layer_geometries()) {
    for (const int batch : flags.batches) {
      for (const int window : flags.windows) {
        double base = 0;
        for (const Variant& variant : variants(window)) {
          const LayerCase layer_case{
              geometry, variant.way, variant.dtype,      flags.model.interval,
              batch,    window,      accepted_of(window)};
          const LayerTiming t = time_layer(layer_case, pool);
          if (base == 0) base = t.us;
          const double rate = t.must_move / t.us * 1e6;
          std::printf("%-27s %5d %2d  %-9s %-5s %9.0f %8.1f %7.0f%% %7.2fx\n",
                      geometry.name.c_str(), batch, window, state_method_name(variant.way),
                      dtype_name(variant.dtype), t.us, rate / 1e9, 100 * rate / bandwidth,
                      base / t.us);
          std::fflush(stdout);
          out.push_back({{"layer", geometry.name},
                         {"batch", batch},
                         {"window", window},
                         {"accepted", accepted_of(window)},
                         {"state", state_method_name(variant.way)},
                         {"dtype", dtype_name(variant.dtype)},
                         {"grid", flags.model.interval},
                         {"us", t.us},
                         {"must_move_bytes", t.must_move},
                         {"bytes_per_second", rate},
                         {"speed_up", base / t.us}});
        }
      }
    }
  }
  return out;
}

// Median milliseconds of a decode step of `batch` sequences with windows of T.
double time_model(const std::shared_ptr<const Model>& model, const Device& device, int batch,
                  int window) {
  constexpr int64_t kPrompt = 64;
  constexpr int kSteps = 48;
  const int accepted = accepted_of(window);
  RunnerLimits limits;
  limits.max_sequences = batch;
  limits.max_positions = kPrompt + int64_t{kSteps + 1} * window;
  limits.max_tokens = std::max<int64_t>(kPrompt, int64_t{batch} * window);
  limits.max_logits = int64_t{batch} * window;
  Runner runner(model, device, limits);
  std::vector<int32_t> prompt, ids;
  for (int i = 0; i < kPrompt; ++i) {
    prompt.push_back(static_cast<int32_t>((i * 37 + 11) % model->spec().vocab));
  }
  for (int i = 0; i < window; ++i) ids.push_back(prompt[static_cast<size_t>(i)]);
  std::vector<Window> windows;
  for (int i = 0; i < batch; ++i) {
    Window window_i;
    window_i.sequence = runner.open();
    window_i.tokens = std::span<const int32_t>(prompt).first(static_cast<size_t>(kPrompt - i % 16));
    window_i.prefill = true;
    runner.run({&window_i, 1});
    window_i.tokens = ids;
    window_i.prefill = false;
    window_i.n_logits = window;
    windows.push_back(window_i);
  }
  std::vector<double> times;
  for (int step = 0; step < kSteps; ++step) {
    const double start = now_seconds();
    runner.run(windows);
    for (const Window& w : windows) runner.advance(w.sequence, accepted);
    times.push_back(now_seconds() - start);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e3;
}

nlohmann::json bench_model(const BenchFlags& flags, const ops::Context& context) {
  const std::string folder = flags.model.path_or_default();
  nlohmann::json out = nlohmann::json::array();
  std::printf("\n%s\n%5s %2s  %-9s %-5s %9s %11s %7s\n", folder.c_str(), "batch", "T", "state",
              "dtype", "ms", "tokens/s", "speed-up");
  for (const int batch : flags.batches) {
    for (const int window : flags.windows) {
      double base = 0;
      for (const Variant& variant : variants(window)) {
        ModelOptions options = flags.model.options(window, "--window");
        options.checkpoint = variant.dtype;
        const auto model = Model::load(folder, options);
        const auto device =
            variant.way == StateMethod::kReplay ? cpu_device(context) : plain_device(context);
        const double ms = time_model(model, *device, batch, window);
        if (base == 0) base = ms;
        const double rate = batch * accepted_of(window) / ms * 1e3;
        std::printf("%5d %2d  %-9s %-5s %9.2f %11.0f %7.2fx\n", batch, window,
                    state_method_name(variant.way), dtype_name(variant.dtype), ms, rate, base / ms);
        std::fflush(stdout);
        out.push_back({{"model", folder},
                       {"batch", batch},
                       {"window", window},
                       {"accepted", accepted_of(window)},
                       {"state", state_method_name(variant.way)},
                       {"dtype", dtype_name(variant.dtype)},
                       {"ms", ms},
                       {"tokens_per_second", rate},
                       {"speed_up", base / ms}});
      }
    }
  }
  return out;
}

void run(const BenchFlags& flags) {
  if (flags.what != "layers" && flags.what != "model" && flags.what != "all") {
    throw cli::UsageError(
        concat("what ", flags.what, ": must be layers, model, all, serve or simulate"));
  }
  for (const int window : flags.windows) {
    flags.model.options(window, "--window");  // refuses what does not fit the grid
  }
  // What cannot be read or written is refused now, not after minutes of timing.
  if (flags.what != "layers") {
    Model::load(flags.model.path_or_default(), flags.model.options(1, "--window"));
  }
  std::ofstream file;
  if (!flags.json.empty()) {
    file.open(flags.json);
    if (!file) fail(flags.json, ": cannot write");
  }
  ThreadPool pool(flags.model.threads);
  const ops::Context context(pool);
  progress("measuring the read bandwidth");
  const double bandwidth = measure_read_bandwidth(pool);
  std::printf("%s, %d threads, read bandwidth %.1f GB/s\n", isa_name(best_isa()), pool.size(),
              bandwidth / 1e9);
  nlohmann::json out = {{"isa", isa_name(best_isa())},
                        {"threads", pool.size()},
                        {"read_bytes_per_second", bandwidth}};
  if (flags.what != "model") {
    progress("layers, bf16 activations");
    out["layers"] = bench_layers(flags, pool, bandwidth);
  }
  if (flags.what != "layers") {
    progress("whole model");
    out["model"] = bench_model(flags, context);
  }
  if (flags.json.empty()) return;
  file << out.dump(1) << "\n" << std::flush;
  if (!file) fail(flags.json, ": cannot write");
}

}  // namespace

void add_layers(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  app.add_option("what", flags->what, "layers, model or all")->capture_default_str();
  flags->model.add_path(app);
  flags->model.add_grid(app);
  app.add_option("--batch", flags->batches, "batch sizes")
      ->check(cli::in_range<int>(1, 4096))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--window", flags->windows, "windows T")
      ->check(cli::in_range<int>(1, cli::kMaxDrafts + 1))
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--json", flags->json, "also write the figures to this file");
  flags->model.add_threads(app);
  app.callback([flags, &app] {
    if (app.get_subcommands().empty()) run(*flags);
  });
}

}  // namespace replayssm::bench
