// replayssm inspect: what a model is and what its sequences cost. Reads no weights.
#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/common.h"
#include "model/formats/gguf_model.h"
#include "model/model_folder.h"
#include "model/model_source.h"
#include "model/parameters.h"
#include "model/quantization.h"
#include "server/chat/find_template.h"
#include "server/served_model.h"

namespace replayssm::cli {
namespace {

struct InspectFlags {
  ModelFlags model;
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

// ", YaRN x 4"; empty for plain positions.
std::string scaling_text(const ops::RopeScaling& scaling) {
  using Kind = ops::RopeScaling::Kind;
  if (scaling.kind == Kind::kNone) return {};
  char text[48];
  std::snprintf(text, sizeof(text), ", %s x %g", scaling.kind == Kind::kYarn ? "YaRN" : "linear",
                scaling.factor);
  return text;
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
                  a->rotary_dims, scaling_text(a->rope_scaling));
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

// What is looked at: a configuration alone, a folder, or a GGUF file.
struct Subject {
  std::string path;
  ModelDescription description;
  DType stored = DType::kBF16;
  int64_t file_bytes = 0;            // of the tensors that are run; 0: a configuration alone
  std::vector<std::string> formats;  // "12 modules FP8 ..."
};

bool is_aside(const std::string& name, const std::vector<std::string>& skipped) {
  return std::any_of(skipped.begin(), skipped.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

std::string format_text(const ModuleFormat& module) {
  if (module.format == WeightFormat::kFloat) return file_dtype_name(module.weight->dtype);
  return format_name(module.format);
}

void read_folder(Subject& out) {
  const TensorFiles files = TensorFiles::open_folder(out.path);
  out.description = describe_model(out.path, files);
  const auto& skipped = out.description.names.skipped_prefixes;
  out.stored = stored_dtype(out.description, files);
  for (const TensorView& tensor : files.tensors()) {
    if (!is_aside(tensor.name, skipped)) out.file_bytes += tensor.bytes;
  }
  std::map<std::string, int64_t> counts;
  for (const auto& [name, module] : module_formats(files)) {
    if (!is_aside(name, skipped)) ++counts[format_text(module)];
  }
  for (const auto& [format, count] : counts) out.formats.push_back(concat(count, " in ", format));
}

void read_gguf(Subject& out) {
  const GgufModel model = GgufModel::open(out.path);
  out.description = model.description();
  out.stored = wide_dtype(model.type_of(out.description.names.embedding));
  std::map<std::string, int64_t> counts;
  for (const GgufTensor& tensor : model.files().tensors()) {
    if (model.is_skipped(tensor.name)) continue;
    out.file_bytes += tensor.bytes;
    if (tensor.shape.size() < 2) continue;
    ++counts[find_block_shape(static_cast<int32_t>(tensor.type))->name];
  }
  for (const auto& [format, count] : counts) out.formats.push_back(concat(count, " in ", format));
}

Subject look_at(const ModelFlags& flags) {
  Subject out;
  if (flags.path.ends_with(".json")) {
    out.path = flags.path;
    out.description = describe_config(out.path);
  } else {
    out.path = flags.path_or_default();
    is_gguf(out.path) ? read_gguf(out) : read_folder(out);
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += concat(out.empty() ? "" : ", ", part);
  return out;
}

// Template and end tokens as the server finds them; nothing of a model without a tokenizer.
void print_texts(const Subject& subject) {
  if (!has_tokenizer(subject.path)) return;
  const ModelSpec& spec = subject.description.spec;
  const auto served =
      server::load_served_model(subject.path, "", spec.vocab, spec.max_positions, spec.eos_ids);
  const auto templates = server::find_templates(subject.path);
  std::vector<std::string> ends;
  for (const int32_t id : served.eos_ids) {
    ends.push_back(concat(id, " ", served.tokenizer->decode(std::vector<int32_t>{id})));
  }
  std::printf("  template   %s%s\n",
              templates.chat.text.empty() ? "none" : templates.chat.name.c_str(),
              templates.tools.text.empty() ? "" : concat("; ", templates.tools.name).c_str());
  std::printf("  end tokens %s\n", ends.empty() ? "none" : joined(ends).c_str());
}

void print_model(const Subject& subject, const ParameterCount& count) {
  const ModelSpec& spec = subject.description.spec;
  const auto bytes = [](int64_t n) { return format_bytes(static_cast<double>(n)); };
  std::printf("%s\n", subject.path.c_str());
  std::printf("  type       %s, hidden %lld, vocab %lld, %zu layers, context %lld%s\n",
              spec.model_type.c_str(), static_cast<long long>(spec.hidden),
              static_cast<long long>(spec.vocab), spec.layers.size(),
              static_cast<long long>(spec.max_positions), spec.tied ? ", tied" : "");
  print_mixers(spec);
  std::printf("  parameters %.3f M, %.3f M read for a token\n",
              static_cast<double>(count.total) / 1e6, static_cast<double>(count.active) / 1e6);
  if (spec.mtp) {
    const ParameterCount head = count_parameters(*spec.mtp, spec.hidden);
    std::printf("  MTP head   attention, %s: %.3f M more parameters, with --draft mtp\n",
                mixer_name(spec.mtp->feed_forward), static_cast<double>(head.total) / 1e6);
  }
  if (subject.file_bytes > 0) {
    std::printf("  weights    %s\n", bytes(subject.file_bytes).c_str());
    std::printf("  matrices   %s\n", joined(subject.formats).c_str());
    const std::string stated =
        is_gguf(subject.path) ? std::string() : stated_quantization(subject.path);
    if (!stated.empty()) std::printf("  config     says %s\n", stated.c_str());
    print_texts(subject);
  } else {
    std::printf("  weights    %s in bf16, %s in FP8\n", bytes(weight_bytes(count, false)).c_str(),
                bytes(weight_bytes(count, true)).c_str());
  }
}

void run(const InspectFlags& flags) {
  ModelOptions options = flags.model.options(flags.window, "--window");
  const Subject subject = look_at(flags.model);
  const ModelSpec& spec = subject.description.spec;
  const auto model = Model::of(subject.description, subject.stored, options);
  const ParameterCount count = count_parameters(spec);
  ThreadPool pool(1);
  const ops::Context context(pool);
  const auto device = cpu_device(context);
  const ModelMemory m = device->memory(*model);
  const int64_t weights = subject.file_bytes > 0 ? subject.file_bytes : weight_bytes(count, false);
  const auto bytes = [](int64_t n) { return format_bytes(static_cast<double>(n)); };
  print_model(subject, count);
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
  if (spec.mtp) {
    options.mtp = true;
    const ModelMemory with =
        device->memory(*Model::of(subject.description, subject.stored, options));
    std::printf("  MTP head   %s of KV a token and %s beside, with --draft mtp\n",
                bytes(with.kv_token - m.kv_token).c_str(),
                bytes(with.conv_slot - m.conv_slot).c_str());
  }
  if (flags.memory_gb > 0) {
    const double left = flags.memory_gb * 1e9 - static_cast<double>(weights);
    const double fit = left < 0 ? 0 : left / sequence;
    std::printf("%lld sequences of %lld tokens fit in %.3g GB\n", static_cast<long long>(fit),
                static_cast<long long>(flags.context), flags.memory_gb);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* verb =
      app.add_subcommand("inspect", "show a model's parts and the memory that it needs");
  flags->model.add_path(*verb,
                        "model folder, GGUF file, Org/Name from Hugging Face's cache, or a "
                        "config.json alone, such as "
                        "models/geometries/qwen3.5-35b-a3b.json (default: the GDN demo model)");
  flags->model.add_numerics(*verb);
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
