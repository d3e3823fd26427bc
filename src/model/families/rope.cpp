#include "model/families/rope.h"

#include <algorithm>

#include "model/families/bounds.h"

namespace replayssm {
namespace {

using ops::RopeScaling;

constexpr double kMaxFactor = 1e6;

// The objects that may hold a field, in the order in which they are looked at.
using Places = std::vector<ConfigObject>;

Places places_of(const ConfigObject& config) {
  Places places;
  if (config.has("rope_scaling")) places.push_back(config.object("rope_scaling"));
  if (config.has("rope_parameters")) {
    const ConfigObject parameters = config.object("rope_parameters");
    // A table for each layer type: that of full attention counts.
    for (const char* type : {"full_attention", "attention"}) {
      if (parameters.has_object(type)) places.push_back(parameters.object(type));
    }
    places.push_back(parameters);
  }
  places.push_back(config);
  return places;
}

// The first place that has the field; the last, which is the configuration itself, if none has.
const ConfigObject& place_of(const Places& places, const char* field) {
  for (const ConfigObject& place : places) {
    if (place.has(field)) return place;
  }
  return places.back();
}

// "rope_type", or "type" as older files have it. Multimodal positions ("mrope") are equal in all
// their parts for text, which leaves plain RoPE.
RopeScaling::Kind kind_of(const ConfigObject& place) {
  const char* field = place.has("rope_type") ? "rope_type" : "type";
  const std::string type = place.text_or(field, "default");
  if (type == "default" || type == "mrope") return RopeScaling::Kind::kNone;
  if (type == "linear") return RopeScaling::Kind::kLinear;
  if (type == "yarn") return RopeScaling::Kind::kYarn;
  place.refuse(field, "is '", type.substr(0, 40),
               "'; 'default', 'linear' and 'yarn' are supported");
}

double yarn_factor(const ConfigObject& place, int64_t max_positions, double original) {
  if (place.has("factor")) return place.number("factor", 1.0, kMaxFactor);
  if (!place.has("original_max_position_embeddings")) place.refuse("factor", "is missing");
  return std::clamp(static_cast<double>(max_positions) / original, 1.0, kMaxFactor);
}

RopeScaling read_yarn(const ConfigObject& place, int64_t max_positions) {
  RopeScaling yarn;
  yarn.kind = RopeScaling::Kind::kYarn;
  const auto positions = static_cast<double>(max_positions);
  yarn.original_positions =
      place.number_or("original_max_position_embeddings", positions, 1.0, double{kMaxPositions});
  yarn.factor = yarn_factor(place, max_positions, yarn.original_positions);
  yarn.beta_fast = place.number_or("beta_fast", 32.0, 1e-3, kMaxFactor);
  yarn.beta_slow = place.number_or("beta_slow", 1.0, 1e-3, kMaxFactor);
  yarn.truncate = place.boolean_or("truncate", true);
  const double weight = place.number_or("mscale", 0.0, 0.0, 100.0);
  const double weight_all = place.number_or("mscale_all_dim", 0.0, 0.0, 100.0);
  double factor = ops::yarn_attention_factor(yarn.factor);
  if (weight > 0 && weight_all > 0) {
    factor = ops::yarn_attention_factor(yarn.factor, weight) /
             ops::yarn_attention_factor(yarn.factor, weight_all);
  }
  yarn.attention_factor = place.number_or("attention_factor", factor, 1e-3, 1e3);
  return yarn;
}

}  // namespace

void read_rope(const ConfigObject& config, double partial, AttentionSpec& attention,
               int64_t& max_positions) {
  const Places places = places_of(config);
  const ConfigObject* scaled = nullptr;
  for (const ConfigObject& place : places) {
    // A "type" beside the other fields of a whole configuration is none of RoPE.
    if (&place == &places.back() && !place.has("rope_type")) continue;
    const RopeScaling::Kind kind = kind_of(place);
    if (kind == RopeScaling::Kind::kNone) continue;
    if (scaled != nullptr && kind_of(*scaled) != kind) {
      place.refuse(place.has("rope_type") ? "rope_type" : "type", "disagrees with rope_scaling");
    }
    if (scaled == nullptr) scaled = &place;
  }

  const double least_theta = scaled == nullptr ? 1.0 : 1.001;  // YaRN divides by its logarithm
  attention.rope_theta = place_of(places, "rope_theta").number("rope_theta", least_theta, 1e15);
  const ConfigObject& share = place_of(places, "partial_rotary_factor");
  attention.rotary_dims = static_cast<int32_t>(
      attention.head_dim * share.number_or("partial_rotary_factor", partial, 0.0, 1.0));
  if (attention.rotary_dims % 2 != 0) {
    share.refuse("partial_rotary_factor", "gives an odd count of rotated dimensions, ",
                 attention.rotary_dims, " of ", attention.head_dim);
  }
  if (scaled == nullptr) return;
  if (kind_of(*scaled) == RopeScaling::Kind::kLinear) {
    attention.rope_scaling.kind = RopeScaling::Kind::kLinear;
    attention.rope_scaling.factor = scaled->number("factor", 1.0, kMaxFactor);
    return;
  }
  attention.rope_scaling = read_yarn(*scaled, max_positions);
  const double stretched =
      attention.rope_scaling.original_positions * attention.rope_scaling.factor;
  max_positions = std::max(
      max_positions, static_cast<int64_t>(std::min(stretched, static_cast<double>(kMaxPositions))));
}

}  // namespace replayssm
