#include "bench/serve/bench_serve_cuda.h"

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/baselines/loop_cuda.h"
#include "bench/common/state_bytes.h"
#include "bench/serve/cells_cuda.h"
#include "bench/serve/serve_hash.h"
#include "cli/common.h"
#include "core/cuda/device.h"
#include "model/safetensors.h"

namespace replayssm::bench {
namespace {

std::string version_text(int version) {  // 13000: 13.0
  return concat(version / 1000, ".", version % 1000 / 10);
}

std::string date_text() {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::tm utc;
  gmtime_r(&now, &utc);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &utc);
  return date;
}

nlohmann::json run_json(const std::string& date) {
  check_device();
  cudaDeviceProp card;
  int runtime = 0, driver = 0;
  check_cuda(cudaGetDeviceProperties(&card, 0), "device properties");
  check_cuda(cudaRuntimeGetVersion(&runtime), "runtime version");
  check_cuda(cudaDriverGetVersion(&driver), "driver version");
  return {{"date", date},
          {"card", card.name},
          {"cuda", version_text(runtime)},
          {"driver_cuda", version_text(driver)}};
}

// The file of one model: cells by name, kept over runs with the same sources.
class ServeResults {
 public:
  ServeResults(const std::string& folder, const std::string& model)
      : path_(concat(folder, "/h200_serve_", model, ".json")), model_(model) {
    std::ifstream file(path_);
    if (!file) return;
    const auto old = nlohmann::json::parse(file, nullptr, false);
    try {
      if (old.at("source_hash") != kSourceHash) return;
      runs_ = old.at("runs");
      for (const auto& cell : old.at("cells")) cells_[cell.at("name").get<std::string>()] = cell;
    } catch (const nlohmann::json::exception&) {
      fail(path_, ": not a result of replayssm-bench serve; move it away");
    }
  }

  bool has(const std::string& name) const { return cells_.contains(name); }

  void add(const std::string& name, const nlohmann::json& result, const nlohmann::json& run) {
    if (runs_.empty() || runs_.back() != run) runs_.push_back(run);
    nlohmann::json cell = {{"name", name}, {"run", runs_.size() - 1}};
    cell.update(result);
    cells_[name] = cell;
    nlohmann::json out = {{"source_hash", kSourceHash}, {"model", model_}, {"runs", runs_}};
    out["cells"] = nlohmann::json::array();
    for (const auto& [key, value] : cells_.items()) out["cells"].push_back(value);
    const std::string part = path_ + ".part";
    std::ofstream file(part);
    file << out.dump(1) << "\n" << std::flush;
    if (!file) fail(part, ": cannot write");
    file.close();
    std::filesystem::rename(part, path_);
  }

 private:
  std::string path_, model_;
  nlohmann::json runs_ = nlohmann::json::array();
  nlohmann::json cells_ = nlohmann::json::object();
};

StateMethod parse_way(const std::string& text) {
  if (const auto way = parse_state_method(text)) return *way;
  std::string known;
  for (const StateMethod way : kStateMethods) {
    known += concat(known.empty() ? "" : ", ", state_method_name(way));
  }
  throw cli::UsageError(concat("--mode ", text, ": is none of ", known));
}

// plain is a window of one token's way, the others of the baselines are not.
bool belongs(StateMethod way, int window) {
  return way == StateMethod::kReplay || (way == StateMethod::kPlain) == (window == 1);
}

std::vector<ServeCell> asked_cells(const BenchServeCudaFlags& flags) {
  std::vector<ServeCell> cells;
  for (const int batch : flags.batches) {
    for (const int window : flags.windows) {
      if (window > 16) throw cli::UsageError("--window: must be 1..16");
      const double accepted = window <= 2 ? window : std::min<double>(flags.accepted, window);
      for (const auto& mode : flags.modes) {
        const StateMethod way = parse_way(mode);
        for (const auto& checkpoint : flags.checkpoints) {
          const DType dtype = cli::parse_dtype("--checkpoint", checkpoint, true);
          const bool baseline = way != StateMethod::kReplay;
          if (!belongs(way, window) || (baseline && dtype == DType::kI8)) continue;
          cells.push_back({way, dtype, window, accepted, batch, flags.context});
        }
      }
    }
  }
  return cells;
}

// The targets' main table first, then what the figure by batch needs, in which mixtures of experts
// have no part.
std::vector<ServeCell> headline_cells(const ModelSpec& spec) {
  using enum StateMethod;
  using enum DType;
  std::vector<ServeCell> cells;
  const auto add = [&](int batch, int window, StateMethod method,
                       std::initializer_list<DType> dtypes) {
    for (const DType dtype : dtypes) {
      cells.push_back({method, dtype, window, window == 1 ? 1.0 : 3.0, batch, 1024});
    }
  };
  const std::vector<int> batches = has_mixer<MoeSpec>(spec)
                                       ? std::vector<int>{256}
                                       : std::vector<int>{256, 64, 1, 32, 128, 512, 8};
  for (const int batch : batches) {
    const bool main = batch == 256, table = main || batch == 64 || batch == 1;
    add(batch, 1, kPlain, {kF32});
    add(batch, 1, kReplay, {kF32});
    add(batch, 4, kReplay, {kF32});
    add(batch, 4, kSnapshots, {kF32});
    if (table) add(batch, 1, kReplay, {kF16});
    if (table) add(batch, 4, kReplay, {kF16});
    if (!main) continue;
    add(batch, 1, kPlain, {kF16});
    add(batch, 1, kReplay, {kI8});
    add(batch, 4, kReplay, {kI8});
    add(batch, 8, kReplay, {kF16});
    add(batch, 4, kActivationReplay, {kF32});
    add(batch, 4, kJointAdvance, {kF32});
  }
  return cells;
}

// What one process measures: cells of replay that differ in their batch alone, the smallest first,
// and each baseline's cell by itself; in the order of their first cells.
std::vector<std::vector<ServeCell>> groups_of(const std::vector<ServeCell>& cells) {
  std::vector<std::vector<ServeCell>> out;
  for (const ServeCell& cell : cells) {
    const auto same = std::ranges::find_if(out, [&](const std::vector<ServeCell>& group) {
      const ServeCell& first = group.front();
      return cell.method == StateMethod::kReplay && first.method == cell.method &&
             first.checkpoint == cell.checkpoint && first.window == cell.window &&
             first.accepted == cell.accepted && first.context == cell.context;
    });
    if (same == out.end()) {
      out.push_back({cell});
    } else {
      same->push_back(cell);
    }
  }
  for (auto& group : out) std::ranges::sort(group, {}, &ServeCell::batch);
  return out;
}

bool holds_fp8(const std::string& folder) {
  const TensorFiles files = TensorFiles::open_folder(folder);
  return std::any_of(files.tensors().begin(), files.tensors().end(),
                     [](const TensorView& tensor) { return tensor.dtype == FileDType::kF8E4M3; });
}

// In a process of its own: a cell starts on a device that nothing has used, and a device error
// costs no more than its cell. False if it died.
template <typename Body>
bool run_apart(const Body& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) fail("fork: ", std::strerror(errno));
  if (child == 0) {
    int code = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "replayssm: %s\n", error.what());
      code = 1;
    }
    std::fflush(stdout);
    _exit(code);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void print(const std::string& name, const nlohmann::json& r) {
  if (!r.contains("ms")) {
    std::printf("%-40s %s\n", name.c_str(), r.dump().c_str());
  } else {
    const auto& parts = r["parts_ms"];
    const auto& floor = r["floor_ms"];
    const auto& predicted = r["predicted_ms"];
    const auto get = [](const nlohmann::json& x, const char* key) { return x[key].get<double>(); };
    std::printf(
        "%-40s %9.0f tok/s %8.3f ms (p99 %8.3f) floor %.2f of it, predicted "
        "%7.3f\n",
        name.c_str(), get(r, "tokens_per_second"), get(r, "ms"), get(r, "ms_p99"),
        get(r, "floor_fraction"), get(predicted, "total"));
    for (const char* part : {"weights", "state", "kv", "rest"}) {
      std::printf("    %-8s %8.3f ms, floor %8.3f, predicted %8.3f\n", part, get(parts, part),
                  get(floor, part), get(predicted, part));
    }
    if (r.contains("mean_context")) {
      std::printf("    context  %.0f on average\n", get(r, "mean_context"));
    }
    if (get(r, "experts_read") > 0) {
      std::printf("    experts  %.1f of a mixture's chosen\n", get(r, "experts_read"));
    }
  }
  std::fflush(stdout);
}

}  // namespace

void run_bench_serve_cuda(const BenchServeCudaFlags& flags) {
  const auto start = std::chrono::steady_clock::now();
  if (flags.context < 128 || flags.context > 1 << 20) {
    throw cli::UsageError("--context: must be 128..1048576");
  }
  if (flags.folder.empty() == flags.config.empty()) {
    throw cli::UsageError("--config with --dummy-weights, or -m: one of the two");
  }
  if (flags.dummy_weights == flags.config.empty()) {
    throw cli::UsageError("--dummy-weights: goes with --config, and --config with it");
  }
  if (flags.weights != "bf16" && flags.weights != "fp8") {
    throw cli::UsageError(concat("--weights ", flags.weights, ": must be bf16 or fp8"));
  }
  if (flags.weights == "fp8" && flags.config.empty()) {
    throw cli::UsageError("--weights fp8: with --config only, the weights being dummies");
  }
  const std::string date = date_text();
  ServeModel model;
  model.folder = flags.folder;
  model.description =
      flags.config.empty() ? describe_model(flags.folder) : describe_config(flags.config);
  const std::vector<ServeCell> cells =
      flags.headline ? headline_cells(model.description.spec) : asked_cells(flags);
  const std::filesystem::path source = flags.config.empty() ? flags.folder : flags.config;
  std::filesystem::create_directories(flags.out);
  model.fp8 = flags.config.empty() ? holds_fp8(flags.folder) : flags.weights == "fp8";
  const std::string model_name = flags.config.empty()
                                     ? source.filename().string()
                                     : source.stem().string() + (model.fp8 ? "-fp8" : "");
  const auto results = [&] { return ServeResults(flags.out, model_name); };
  std::printf("%s\n", model_name.c_str());
  int n_failed = 0;
  const auto name_of = [&](const ServeCell& cell) {
    return (flags.exact ? "exact/" : "") + cell.name();
  };
  const auto add = [&](const ServeCell& cell, const nlohmann::json& result) {
    results().add(name_of(cell), result, run_json(date));
    print(name_of(cell), result);
  };
  for (const std::vector<ServeCell>& group : groups_of(cells)) {
    std::vector<ServeCell> left;
    for (const ServeCell& cell : group) {
      if (!results().has(name_of(cell))) left.push_back(cell);
    }
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (left.empty() || spent.count() > flags.seconds) continue;
    const CellLength length{flags.steps, flags.cell_seconds};
    const bool alive = run_apart([&] {
      try {
        if (left.front().method == StateMethod::kReplay) {
          measure_engine_cells(model, left, length, flags.exact, add);
        } else {
          add(left.front(), measure_loop(model, left.front(), length, flags.exact));
        }
      } catch (const DoesNotFit& error) {
        add(left.front(), {{"skipped", error.what()}});
      }
    });
    if (alive) continue;
    ++n_failed;
    std::printf("%-40s failed\n", name_of(left.back()).c_str());
  }
  if (n_failed > 0) fail("CUDA: ", n_failed, " cells failed");
}

}  // namespace replayssm::bench
