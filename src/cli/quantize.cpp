// replayssm quantize: a model folder in few bits, rounded to nearest.
#include "model/formats/quantize.h"

#include <cstdio>
#include <filesystem>

#include "cli/common.h"

namespace replayssm::cli {
namespace {

struct QuantizeFlags {
  ModelFlags model;
  std::string to, out;
};

QuantTarget target_of(const std::string& text) {
  if (text == "gguf") return QuantTarget::kNone;
  if (text == "q8_0") return QuantTarget::kQ8_0;
  if (text == "q4_k") return QuantTarget::kQ4_K;
  if (text == "nvfp4") return QuantTarget::kNvfp4;
  throw UsageError(concat("--to ", text, ": must be q8_0, q4_k, gguf or nvfp4"));
}

void run(const QuantizeFlags& flags) {
  const QuantTarget target = target_of(flags.to);
  quantize_model(flags.model.path_or_default(), target, flags.out);
  const bool folder = target == QuantTarget::kNvfp4;
  const std::string file = folder ? flags.out + "/model.safetensors" : flags.out;
  std::printf("%s: %s, %s%s\n", flags.out.c_str(), flags.to.c_str(),
              format_bytes(static_cast<double>(std::filesystem::file_size(file))).c_str(),
              target == QuantTarget::kNone ? "" : ", rounded to nearest");
}

}  // namespace

void add_quantize(CLI::App& app) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* verb = app.add_subcommand("quantize", "write a model in few bits, rounded to nearest");
  flags->model.add_path(*verb);
  verb->add_option("--to", flags->to,
                   "q8_0 or q4_k: a GGUF file; gguf: one in the model's own types; nvfp4: a folder "
                   "of safetensors")
      ->required();
  verb->add_option("out", flags->out, "the file or folder to write")->required();
  verb->callback([flags] { run(*flags); });
}

}  // namespace replayssm::cli
