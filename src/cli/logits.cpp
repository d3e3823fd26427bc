// replayssm logits: logits at every position, by prefill, token by token, or by windows some of
// which are rejected. The three are equal to the bit.
#include <algorithm>
#include <random>

#include "cli/common.h"
#include "model/safetensors.h"
#include "runtime/runner.h"

namespace replayssm::cli {
namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string ids, ids_file, out;
  std::string mode = "prefill";
  int window = 8;
  uint64_t reject = 0;
};

class LogitsRun {
 public:
  LogitsRun(Runner& runner, const std::vector<int32_t>& ids)
      : runner_(runner),
        ids_(ids),
        vocab_(runner.model().spec().vocab),
        logits_(ids.size() * static_cast<size_t>(vocab_)),
        sequence_(runner.open()) {}

  const std::vector<float>& logits() const { return logits_; }

  void prefill() {
    while (n() < size()) {
      const int64_t count = std::min(size() - n(), runner_.limits().max_tokens);
      feed(tokens(n(), count), count, /*prefill=*/true);
    }
  }

  void decode() {
    while (n() < size()) {
      feed(tokens(n(), 1), 1, false);
      runner_.advance(sequence_, 1);
    }
  }

  // Windows of T: each is first fed with wrong ids from a random accepted point on, rejected there,
  // and the rest fed again.
  void verify(int window, uint64_t seed) {
    std::mt19937_64 rng(seed);
    while (n() < size()) {
      const int64_t count = std::min<int64_t>(window, size() - n());
      const int64_t accepted = static_cast<int64_t>(rng() % static_cast<uint64_t>(count + 1));
      std::vector<int32_t> ids = tokens(n(), count);
      for (int64_t i = accepted; i < count; ++i) {
        ids[static_cast<size_t>(i)] = wrong(ids[static_cast<size_t>(i)], rng);
      }
      feed(ids, accepted, false);
      runner_.advance(sequence_, accepted);
      if (accepted == count) continue;
      feed(tokens(n(), count - accepted), count - accepted, false);
      runner_.advance(sequence_, count - accepted);
    }
  }

 private:
  int64_t n() const { return runner_.n(sequence_); }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  std::vector<int32_t> tokens(int64_t from, int64_t count) const {
    return {ids_.begin() + from, ids_.begin() + from + count};
  }
  int32_t wrong(int32_t id, std::mt19937_64& rng) const {
    const uint64_t shift = vocab_ > 1 ? 1 + rng() % static_cast<uint64_t>(vocab_ - 1) : 0;
    return static_cast<int32_t>((id + static_cast<int64_t>(shift)) % vocab_);
  }

  // Feeds ids at n and keeps the logits of the first `right` of them.
  void feed(const std::vector<int32_t>& ids, int64_t right, bool prefill) {
    const int64_t at = n();
    Window window;
    window.sequence = sequence_;
    window.tokens = ids;
    window.prefill = prefill;
    window.n_logits = static_cast<int32_t>(ids.size());
    const float* rows = runner_.run({&window, 1});
    std::copy(rows, rows + right * vocab_, logits_.begin() + at * vocab_);
  }

  Runner& runner_;
  const std::vector<int32_t>& ids_;
  int64_t vocab_;
  std::vector<float> logits_;
  int32_t sequence_;
};

void run(const LogitsFlags& flags) {
  if (flags.ids.empty() == flags.ids_file.empty()) {
    throw UsageError("give either --ids or --ids-file");
  }
  if (flags.mode != "prefill" && flags.mode != "decode" && flags.mode != "verify") {
    throw UsageError(concat("--mode ", flags.mode, ": must be prefill, decode or verify"));
  }
  if (flags.window < 1) throw UsageError("--window: must be 1 or more");
  const std::vector<int32_t> ids = flags.ids.empty()
                                       ? parse_ids(flags.ids_file, read_file(flags.ids_file))
                                       : parse_ids("--ids", flags.ids);
  const bool verify = flags.mode == "verify";
  const auto model =
      Model::load(flags.model.folder.empty() ? default_model_folder() : flags.model.folder,
                  flags.model.options(verify ? flags.window : 1));
  const ModelSpec& spec = model->spec();
  for (const int32_t id : ids) {
    if (id >= spec.vocab) fail("id ", id, " is not in [0, ", spec.vocab, ")");
  }
  if (static_cast<int64_t>(ids.size()) > spec.max_positions) {
    fail(ids.size(), " ids; the model's context holds ", spec.max_positions);
  }
  ThreadPool pool(flags.model.threads);
  const ops::Context context(pool);
  RunnerLimits limits;
  limits.max_positions = static_cast<int64_t>(ids.size());
  Runner runner(model, context, limits);
  LogitsRun logits(runner, ids);
  if (verify) {
    logits.verify(flags.window, flags.reject);
  } else if (flags.mode == "decode") {
    logits.decode();
  } else {
    logits.prefill();
  }
  const TensorToWrite tensor{"logits",
                             FileDType::kF32,
                             {static_cast<int64_t>(ids.size()), spec.vocab},
                             logits.logits().data()};
  write_safetensors(flags.out, {&tensor, 1});
}

}  // namespace

void add_logits(CLI::App& app) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* verb = app.add_subcommand("logits", "write the logits at every position");
  flags->model.add_folder(*verb);
  verb->add_option("--ids", flags->ids, "token ids, separated by commas");
  verb->add_option("--ids-file", flags->ids_file, "file of ids, white space or commas between");
  verb->add_option("--out", flags->out, "safetensors file: logits [positions, vocab] fp32")
      ->required();
  verb->add_option("--mode", flags->mode, "prefill, decode or verify")->capture_default_str();
  verb->add_option("--window", flags->window, "verify: tokens a window")->capture_default_str();
  verb->add_option("--reject", flags->reject, "verify: seed of the accepted points")
      ->capture_default_str();
  flags->model.add_numerics(*verb);
  flags->model.add_threads(*verb);
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::cli
