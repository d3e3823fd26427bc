// Reading one layer's inputs from a file.
#include "bench/precision/study.h"
#include "core/error.h"
#include "model/safetensors.h"

namespace replayssm::study {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(path + ": " + why);
}

}  // namespace

LayerInputs read_dump(const std::string& path) {
  const TensorFiles file = TensorFiles::open_file(path);
  const TensorView &key = file.at("key"), &value = file.at("value"), &gate = file.at("gate");
  if (key.shape.size() != 3 || value.shape.size() != 3) {
    refuse(path, "key and value are [tokens, heads, dim], not " + key.shape_text() + " and " +
                     value.shape_text());
  }
  LayerInputs in;
  in.name = path;
  in.n_tokens = key.shape[0];
  Problem& p = in.problem;
  p.n_key_heads = static_cast<int32_t>(key.shape[1]);
  p.key_dim = static_cast<int32_t>(key.shape[2]);
  p.n_heads = static_cast<int32_t>(value.shape[1]);
  p.value_dim = static_cast<int32_t>(value.shape[2]);
  p.family = file.find("skip") != nullptr ? Family::kMamba2
             : gate.shape.size() == 3     ? Family::kKda
                                          : Family::kGdn;
  const auto read = [&](const char* name, const std::vector<int64_t>& shape) {
    const TensorView& tensor = file.at(name);
    if (tensor.shape != shape) {
      refuse(path, std::string(name) + " has shape " + tensor.shape_text());
    }
    return read_fp32(tensor);
  };
  const int64_t n = in.n_tokens, heads = p.n_heads;
  const bool kda = p.family == Family::kKda;
  in.query = read("query", key.shape);
  in.key = read("key", key.shape);
  in.value = read("value", {n, heads, p.value_dim});
  in.gate = kda ? read("gate", {n, heads, p.key_dim}) : read("gate", {n, heads});
  in.a_log = read("a_log", {heads});
  in.dt_bias = kda ? read("dt_bias", {heads, p.key_dim}) : read("dt_bias", {heads});
  if (p.family == Family::kMamba2) {
    in.skip = read("skip", {heads});
  } else {
    in.beta = read("beta", {n, heads});
  }
  if (file.find("beta_scale") != nullptr) p.beta_scale = read("beta_scale", {1})[0];
  if (file.find("decay_lower_bound") != nullptr) {
    p.decay_gate = DecayGate::kBounded;
    p.decay_lower_bound = read("decay_lower_bound", {1})[0];
  }
  return in;
}

}  // namespace replayssm::study
