// What the verbs share: flags of a model and its run, number formats, the tokenizer of a folder.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/model.h"
#include "model/tokenizer/tokenizer.h"
#include "ops/context.h"
#include "runtime/backend.h"

namespace replayssm::cli {

// A wrong flag value: exit 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Accepts a T in low..high and no other text; --help shows the range. CLI::Range lets NaN pass.
template <typename T>
CLI::Validator in_range(int64_t low, int64_t high) {
  const std::string range = concat(low, "..", high);
  const auto check = [low, high, range](std::string& text) {
    T value{};
    const bool good = CLI::detail::lexical_cast(text, value) && value >= static_cast<T>(low) &&
                      value <= static_cast<T>(high);
    return good ? std::string() : concat("must be ", range, ", not ", text);
  };
  return CLI::Validator(check, range);
}

inline constexpr int kMaxDrafts = 63;  // and the last token: the largest grid
inline constexpr int64_t kMaxPositions = int64_t{1} << 30;
inline constexpr int64_t kMaxGigabytes = 1'000'000;
inline constexpr const char* kModelHelp =
    "model folder, GGUF file, or Org/Name from Hugging Face's cache (default: the GDN demo model)";

struct ModelFlags {
  std::string path;
  int interval = 16;
  std::string checkpoint;  // empty: the model's default
  std::string ring;
  int threads = 0;  // 0: one per hardware thread

  void add_path(CLI::App& app, const char* help = kModelHelp);
  void add_grid(CLI::App& app);
  void add_numerics(CLI::App& app);  // with the grid
  void add_threads(CLI::App& app);

  // As find_model() gives it.
  std::string path_or_default() const;
  // max_window: T_max, as `window_flag` asks for it. Throws UsageError naming the flag.
  ModelOptions options(int max_window, const char* window_flag) const;
};

DType parse_dtype(const std::string& flag, const std::string& text, bool allow_int8);

struct DeviceFlags {
  std::string name = "cpu";  // or cuda
  bool exact = false;        // counts on CUDA; the CPU always is

  void add(CLI::App& app);
  // Throws UsageError for another name, Error for a device that this build or machine has not.
  std::unique_ptr<Device> open(const ops::Context& context) const;
};

// Throws Error where this build or machine has none.
std::unique_ptr<Device> open_cuda(bool exact);

// The model of --draft `folder`. Throws Error if its vocabulary is not the target's.
std::shared_ptr<const Model> load_draft_model(const std::string& folder,
                                              const ModelOptions& options, const Model& target);

// An option with an empty value, as "$UNSET" leaves it, is refused by name.
void refuse_empty_values(CLI::App& verb);

// A number in [0, 2^64), digits only. Throws UsageError naming the flag.
uint64_t parse_seed(const std::string& flag, const std::string& text);

// Ids separated by white space or commas. `source` names the flag or file in errors.
std::vector<int32_t> parse_ids(const std::string& source, const std::string& text);

// "1.5 MB", "812 B".
std::string format_bytes(double bytes);

// The verbs; each adds its flags to a subcommand and what to do to it.
void add_generate(CLI::App& app);
void add_logits(CLI::App& app);
void add_inspect(CLI::App& app);
void add_serve(CLI::App& app);
void add_quantize(CLI::App& app);

}  // namespace replayssm::cli
