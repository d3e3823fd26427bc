// replayssm logits: logits at every position, by prefill, token by token, or by windows some of
// which are rejected. The three are equal to the bit.
#include "runtime/logits.h"

#include "cli/common.h"
#include "core/text_file.h"
#include "model/safetensors.h"

namespace replayssm::cli {
namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string ids, ids_file, out;
  std::string mode = "prefill";
  int window = 8;
  std::string reject = "0";
};

LogitsMode mode_of(const std::string& text) {
  if (text == "prefill") return LogitsMode::kPrefill;
  if (text == "decode") return LogitsMode::kDecode;
  if (text == "verify") return LogitsMode::kVerify;
  throw UsageError(concat("--mode ", text, ": must be prefill, decode or verify"));
}

void run(const LogitsFlags& flags) {
  if (flags.ids.empty() == flags.ids_file.empty()) {
    throw UsageError("give either --ids or --ids-file");
  }
  if (flags.out.empty()) throw UsageError("--out: names no file");
  LogitsParams params;
  params.mode = mode_of(flags.mode);
  params.reject_seed = parse_seed("--reject", flags.reject);
  const bool verify = params.mode == LogitsMode::kVerify;
  params.window = verify ? flags.window : 1;
  const ModelOptions options = flags.model.options(params.window, "--window");
  const std::string source = flags.ids.empty() ? flags.ids_file : "--ids";
  const std::vector<int32_t> ids =
      parse_ids(source, flags.ids.empty() ? read_text_file(flags.ids_file) : flags.ids);
  const auto model = Model::load(flags.model.path_or_default(), options);
  const ModelSpec& spec = model->spec();
  check_text(source, ids, spec.vocab, spec.max_positions);
  ThreadPool pool(flags.model.threads);
  const ops::Context context(pool);
  RunnerLimits limits;
  limits.max_positions = static_cast<int64_t>(ids.size());
  Runner runner(model, context, limits);
  const std::vector<float> logits = logits_of(runner, ids, params);
  const TensorToWrite tensor{
      "logits", FileDType::kF32, {static_cast<int64_t>(ids.size()), spec.vocab}, logits.data()};
  write_safetensors(flags.out, {&tensor, 1});
}

}  // namespace

void add_logits(CLI::App& app) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* verb = app.add_subcommand("logits", "write the logits at every position");
  flags->model.add_path(*verb);
  verb->add_option("--ids", flags->ids, "token ids, separated by commas");
  verb->add_option("--ids-file", flags->ids_file, "file of ids, white space or commas between");
  verb->add_option("--out", flags->out, "safetensors file: logits [positions, vocab] fp32")
      ->required();
  verb->add_option("--mode", flags->mode, "prefill, decode or verify")->capture_default_str();
  verb->add_option("--window", flags->window, "verify: tokens a window")
      ->check(in_range<int>(1, kMaxDrafts + 1))
      ->capture_default_str();
  verb->add_option("--reject", flags->reject, "verify: seed of the accepted points")
      ->capture_default_str();
  flags->model.add_numerics(*verb);
  flags->model.add_threads(*verb);
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::cli
