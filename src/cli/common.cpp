#include "cli/common.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "model/model_folder.h"

namespace replayssm::cli {

void ModelFlags::add_path(CLI::App& app, const char* help) {
  app.add_option("-m,--model", path, help)->check([](const std::string& text) {
    return std::string(text.empty() ? "must not be empty" : "");
  });
}

void ModelFlags::add_grid(CLI::App& app) {
  app.add_option("--grid", interval, "B, tokens between checkpoints")
      ->check(CLI::IsMember({8, 16, 32, 64}))
      ->capture_default_str();
}

void ModelFlags::add_numerics(CLI::App& app) {
  add_grid(app);
  app.add_option("--checkpoint-dtype", checkpoint,
                 "fp32, fp16, bf16 or int8 (default: fp32 for an fp32 model, else fp16)");
  app.add_option("--ring-dtype", ring, "fp32, fp16 or bf16 (default: fp32, fp16; Mamba-2: bf16)");
}

void ModelFlags::add_threads(CLI::App& app) {
  app.add_option("--threads", threads, "worker threads; 0: one per hardware thread")
      ->check(in_range<int>(0, 1024))
      ->capture_default_str();
}

void DeviceFlags::add(CLI::App& app) {
  app.add_option("--device", name, "cpu, or cuda in a build with it")->capture_default_str();
  app.add_flag("--exact", exact,
               "on CUDA: same bits whatever the windows and drafts (the CPU's always are)");
}

std::unique_ptr<Device> DeviceFlags::open(const ops::Context& context) const {
  if (name == "cpu") return cpu_device(context);
  if (name == "cuda") return open_cuda(exact);
  throw UsageError(concat("--device ", name, ": must be cpu or cuda"));
}

std::shared_ptr<const Model> load_draft_model(const std::string& folder,
                                              const ModelOptions& options, const Model& target) {
  auto model = Model::load(find_model(folder), options);
  if (model->spec().vocab != target.spec().vocab) {
    fail("--draft ", folder, ": its vocabulary has ", model->spec().vocab,
         " entries, the model's has ", target.spec().vocab);
  }
  return model;
}

std::string ModelFlags::path_or_default() const {
  if (!path.empty()) return find_model(path);
  // Beside the build that this binary came from, or installed.
  const std::filesystem::path built(REPLAYSSM_MODELS_DIR);
  if (std::filesystem::exists(built / "demo-gdn")) return (built / "demo-gdn").string();
  return "models/demo-gdn";
}

ModelOptions ModelFlags::options(int max_window, const char* window_flag) const {
  if (max_window > interval) {
    throw UsageError(concat(window_flag, ": a step of ", max_window, " tokens does not fit --grid ",
                            interval, "; ask for less or take a larger grid"));
  }
  ModelOptions options;
  options.interval = interval;
  options.max_window = max_window;
  if (!checkpoint.empty()) {
    options.checkpoint = parse_dtype("--checkpoint-dtype", checkpoint, true);
  }
  if (!ring.empty()) options.ring = parse_dtype("--ring-dtype", ring, false);
  return options;
}

DType parse_dtype(const std::string& flag, const std::string& text, bool allow_int8) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    if (text == dtype_name(dtype) && (allow_int8 || dtype != DType::kI8)) return dtype;
  }
  throw UsageError(
      concat(flag, " ", text, ": must be fp32, fp16", allow_int8 ? ", bf16 or int8" : " or bf16"));
}

void refuse_empty_values(CLI::App& verb) {
  for (CLI::Option* option : verb.get_options()) {
    if (option->get_expected_max() == 0) continue;  // a flag
    option->check([](const std::string& value) {
      return value.empty() ? std::string("must not be empty") : std::string();
    });
  }
}

uint64_t parse_seed(const std::string& flag, const std::string& text) {
  uint64_t seed = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, seed);
  if (error != std::errc{} || next != end) {
    throw UsageError(concat(flag, " ", text, ": must be a number in [0, 2^64)"));
  }
  return seed;
}

std::vector<int32_t> parse_ids(const std::string& source, const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  const auto separates = [](char c) { return c == ',' || c == ' ' || (c >= '\t' && c <= '\r'); };
  while (at < end) {
    if (separates(*at)) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc{} || id < 0 || (next < end && !separates(*next))) {
      const char* stop = at;
      while (stop < end && !separates(*stop) && stop - at < 20) ++stop;
      std::string word(at, stop);
      std::replace_if(word.begin(), word.end(), [](unsigned char c) { return c < ' '; }, '?');
      fail(source, ": \"", word, "\" is not a token id");
    }
    ids.push_back(id);
    at = next;
  }
  if (ids.empty()) fail(source, ": no token ids");
  return ids;
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.3g %s", bytes, units[unit]);
  return text;
}

}  // namespace replayssm::cli
