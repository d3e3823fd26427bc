#include "bench/serve/bench_serve.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/serve/bench_serve_cuda.h"
#include "bench/serve/load.h"
#include "cli/common.h"

namespace replayssm::bench {
namespace {

using Json = nlohmann::json;

struct BenchServeFlags {
  cli::ModelFlags model;
  std::vector<int> batches = {1, 8, 32};
  std::vector<int> windows = {1, 4};
  std::string draft = "ngram";
  int context = 0;  // 0: 128, on CUDA 1,024
  int tokens = 256;
  std::string url;
  std::string json;
  std::string device = "cpu";
  BenchServeCudaFlags cuda;
};

struct Cell {
  int batch;
  int window;
};

// What prompts are made of.
struct Words {
  std::vector<int32_t> ids;
  int64_t vocab;
};

void check_flags(const BenchServeFlags& flags) {
  for (const int window : flags.windows) {
    flags.model.options(window, "--window");  // refuses what does not fit the grid
  }
  if (flags.draft.empty()) throw cli::UsageError("--draft: must be ngram, mtp or a model folder");
  if (flags.context < 2) throw cli::UsageError("--context: must be 2 or more");
}

// Prompts of words, that no two requests begin alike.
std::vector<LoadRequest> requests_of(const Cell& cell, const BenchServeFlags& flags,
                                     const Words& words) {
  std::vector<LoadRequest> requests(static_cast<size_t>(cell.batch));
  for (size_t i = 0; i < requests.size(); ++i) {
    auto& prompt = requests[i].prompt;
    const auto number = static_cast<int64_t>(i) + cell.batch * int64_t{4096} + cell.window;
    prompt = {static_cast<int32_t>(number % words.vocab),
              static_cast<int32_t>(number / words.vocab % words.vocab)};
    for (size_t t = i; std::ssize(prompt) < flags.context; ++t) {
      prompt.push_back(words.ids[t % words.ids.size()]);
    }
    requests[i].new_tokens = flags.tokens;
    requests[i].draft_tokens = cell.window - 1;
  }
  return requests;
}

EngineOptions engine_options(const Cell& cell, const BenchServeFlags& flags,
                             const std::shared_ptr<const Model>& draft_model) {
  EngineOptions options;
  options.max_sequences = cell.batch;
  options.max_positions = int64_t{flags.context} + flags.tokens;
  options.draft_tokens = cell.window - 1;
  options.adaptive_drafts = false;
  if (cell.window > 1) {
    options.draft = flags.draft == "mtp"     ? DraftMode::kMtp
                    : draft_model == nullptr ? DraftMode::kNgram
                                             : DraftMode::kModel;
    options.draft_model = draft_model;
  }
  return options;
}

// A table on stdout and JSON to a file.
class Report {
 public:
  Report(const BenchServeFlags& flags, int n_threads) : flags_(flags) {
    if (!flags.json.empty()) {
      file_.open(flags.json);
      if (!file_) fail(flags.json, ": cannot write");
    }
    json_ = {{"isa", isa_name(best_isa())}, {"threads", n_threads}, {"cells", Json::array()}};
    if (flags.url.empty()) {
      json_["model"] = flags.model.path_or_default();
    } else {
      json_["url"] = flags.url;
    }
    std::printf("%5s %2s  %11s %9s %9s %9s %9s %9s %9s\n", "batch", "T", "tokens/s", "in all",
                "step ms", "p99 ms", "first ms", "a step", "accepted");
  }

  // `more`: what is known of the engine alone.
  void add(const Cell& cell, const LoadFigures& figures, const Json& more) {
    const double accepted = static_cast<double>(figures.accepted) /
                            static_cast<double>(std::max<int64_t>(1, figures.drafted));
    std::printf("%5d %2d  %11.0f %9.0f %9.2f %9.2f %9.1f %9.2f %8.0f%%\n", cell.batch, cell.window,
                figures.tokens_per_second, figures.total_tokens_per_second, figures.step_ms_p50,
                figures.step_ms_p99, figures.first_ms_p50, figures.tokens_a_step, 100 * accepted);
    std::fflush(stdout);
    Json json = {{"batch", cell.batch},
                 {"window", cell.window},
                 {"context", flags_.context},
                 {"new_tokens", flags_.tokens},
                 {"tokens_per_second", figures.tokens_per_second},
                 {"total_tokens_per_second", figures.total_tokens_per_second},
                 {"ms", figures.step_ms_p50},
                 {"ms_p99", figures.step_ms_p99},
                 {"first_ms", figures.first_ms_p50},
                 {"tokens_a_step", figures.tokens_a_step},
                 {"drafted", figures.drafted},
                 {"accepted", figures.accepted}};
    json.update(more);
    json_["cells"].push_back(std::move(json));
  }

  void write() {
    if (flags_.json.empty()) return;
    file_ << json_.dump(1) << "\n" << std::flush;
    if (!file_) fail(flags_.json, ": cannot write");
  }

 private:
  const BenchServeFlags& flags_;
  std::ofstream file_;
  Json json_;
};

void bench_engine(const BenchServeFlags& flags, const Words& words) {
  ThreadPool pool(flags.model.threads);
  const ops::Context context(pool);
  Report report(flags, pool.size());
  for (const int window : flags.windows) {
    ModelOptions model_options = flags.model.options(window, "--window");
    model_options.mtp = window > 1 && flags.draft == "mtp";
    const auto model = Model::load(flags.model.path_or_default(), model_options);
    std::shared_ptr<const Model> draft_model;
    if (window > 1 && flags.draft != "ngram" && flags.draft != "mtp") {
      draft_model = Model::load(flags.draft, model_options);
    }
    for (const int batch : flags.batches) {
      const Cell cell{batch, window};
      const auto engine = make_engine(model, context, engine_options(cell, flags, draft_model));
      if (engine->stats().rings < batch) {
        fail("--batch ", batch, ": only ", engine->stats().rings, " sequences fit the memory");
      }
      report.add(cell, load_figures(run_load(*engine, requests_of(cell, flags, words))),
                 {{"draft", window > 1 ? flags.draft : "off"},
                  {"state", "replay"},
                  {"dtype", dtype_name(model->checkpoint())},
                  {"grid", model->grid().interval}});
    }
  }
  report.write();
}

void bench_server(const BenchServeFlags& flags, const Words& words) {
  const server::ServerAddress server(flags.url);
  Report report(flags, 1);
  for (const int window : flags.windows) {
    for (const int batch : flags.batches) {
      const Cell cell{batch, window};
      report.add(cell, load_figures(run_load(server, requests_of(cell, flags, words))),
                 Json::object());
    }
  }
  report.write();
}

void run(BenchServeFlags flags) {
  if (flags.context == 0) flags.context = flags.device == "cuda" ? 1024 : 128;
  if (flags.device == "cuda") {
    if (!flags.model.path.empty()) flags.cuda.folder = flags.model.path_or_default();
    flags.cuda.batches = flags.batches;
    flags.cuda.windows = flags.windows;
    flags.cuda.context = flags.context;
    run_bench_serve_cuda(flags.cuda);
    return;
  }
  if (flags.device != "cpu") {
    throw cli::UsageError(concat("--device ", flags.device, ": must be cpu or cuda"));
  }
  check_flags(flags);
  const auto tokenizer = model::Tokenizer::load(flags.model.path_or_default() + "/tokenizer.json");
  const Words words = {
      tokenizer.encode("The purpose of this chapter is to describe how the system is installed "
                       "and how its packages are configured. "),
      tokenizer.vocab_size()};
  if (flags.url.empty()) {
    bench_engine(flags, words);
  } else {
    bench_server(flags, words);
  }
}

// What counts with --device cuda alone.
void add_cuda_flags(CLI::App& verb, BenchServeCudaFlags& flags) {
  const auto list = [&](const char* name, std::vector<std::string>& value, const char* text) {
    verb.add_option(name, value, text)->delimiter(',')->capture_default_str()->group("On CUDA");
  };
  const auto one = [&](const char* name, auto& value, const char* text) {
    return verb.add_option(name, value, text)->capture_default_str()->group("On CUDA");
  };
  const auto flag = [&](const char* name, bool& value, const char* text) {
    verb.add_flag(name, value, text)->group("On CUDA");
  };
  one("--config", flags.config, "instead of a model: a configuration, e.g. of models/geometries");
  flag("--dummy-weights", flags.dummy_weights, "with --config: weights that stand for real ones");
  one("--weights", flags.weights, "bf16, or fp8 with dummy weights");
  list("--mode", flags.modes, "replay, plain, snapshots, activation_replay, joint_advance");
  list("--checkpoint", flags.checkpoints, "fp32, fp16, bf16, int8: of the checkpoint or state");
  one("--accept", flags.accepted, "tokens of a window that stand, on average")
      ->check(cli::in_range<double>(1, 16));
  one("--steps", flags.steps, "that are timed")->check(cli::in_range<int>(1, 100000));
  flag("--exact", flags.exact, "the exact mode: bits that depend on a text's tokens alone");
  flag("--headline", flags.headline, "the cells of docs/benchmarks.md");
  one("--cell-seconds", flags.cell_seconds, "a cell ends after this time, with 200 steps at least");
  one("--seconds", flags.seconds, "start no cell after this time");
  one("--out", flags.out, "folder of the results, which are resumed");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* verb = app.add_subcommand("serve", "time the engine under concurrent requests");
  flags->model.add_path(*verb);
  flags->model.add_numerics(*verb);
  verb->add_option("--batch", flags->batches, "requests at once")
      ->check(cli::in_range<int>(1, 4096))
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--window", flags->windows, "windows T: T - 1 drafts a step")
      ->check(cli::in_range<int>(1, cli::kMaxDrafts + 1))
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--draft", flags->draft, "ngram, mtp or a model folder")->capture_default_str();
  verb->add_option("--context", flags->context,
                   "tokens of each prompt, or positions before a step; 0: 128, on CUDA 1024")
      ->check(cli::in_range<int>(0, 1 << 24));
  verb->add_option("--tokens", flags->tokens, "of each answer")
      ->check(cli::in_range<int>(16, 1 << 24))
      ->capture_default_str();
  verb->add_option("--url", flags->url, "time a running server of the model, over its streams");
  verb->add_option("--json", flags->json, "also write the figures to this file");
  verb->add_option("--device", flags->device, "cpu, or cuda: steady decoding, step by step")
      ->capture_default_str();
  add_cuda_flags(*verb, flags->cuda);
  flags->model.add_threads(*verb);
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::bench
