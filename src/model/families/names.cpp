#include "model/families/names.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

namespace replayssm {
namespace {

constexpr std::string_view kFirstLayer = "layers.0.";

// Segments of names that stand for one another.
const std::vector<std::vector<std::string_view>> kSynonyms = {
    {"embed_tokens", "embeddings", "embedding", "word_embeddings", "tok_embeddings", "wte"},
    {"norm", "norm_f", "final_norm", "final_layernorm", "ln_f"},
    {"shared_expert", "shared_experts"},
    {"lm_head", "output", "embed_out"},
};

// Parts beside the text model that files of text models may hold.
const std::set<std::string_view> kAsideParts = {
    "mtp",          "visual",   "vision_tower", "vision_model",     "vision_encoder",
    "vision_embed", "audio",    "audio_tower",  "audio_model",      "sound_encoder",
    "talker",       "code2wav", "mm_projector", "sound_projection", "multi_modal_projector"};

// What modules keep beside their weights.
const std::set<std::string_view> kBuffers = {
    "inv_freq",   "original_inv_freq", "masked_bias", "num_batches_tracked", "position_ids",
    "cos_cached", "sin_cached",        "freqs_cis",   "causal_mask",         "_extra_state"};

std::vector<std::string_view> segments_of(std::string_view name) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    out.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

bool is_buffer(const TensorView& tensor) {
  const auto segments = segments_of(tensor.name);
  return tensor.dtype == FileDType::kBool || kBuffers.contains(segments.back()) ||
         std::find(segments.begin(), segments.end(), "rotary_emb") != segments.end();
}

// "a.b" of "a.b.weight".
std::string_view module_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? std::string_view() : name.substr(0, dot);
}

class Stored {
 public:
  explicit Stored(const TensorFiles& files) {
    for (const TensorView& tensor : files.tensors()) {
      names_.insert(tensor.name);
      for (auto module = module_of(tensor.name); !module.empty(); module = module_of(module)) {
        if (!modules_.insert(module).second) break;
      }
    }
  }

  // Itself, or its module under the names of a quantised weight's parts.
  bool has(std::string_view name) const {
    if (name.ends_with('.')) return modules_.contains(name.substr(0, name.size() - 1));
    return names_.contains(name) ||
           (name.ends_with(".weight") && modules_.contains(module_of(name)));
  }

 private:
  std::unordered_set<std::string_view> names_, modules_;
};

template <typename Visit>
void visit_mixer(MixerNames& mixer, const Visit& visit) {
  visit(mixer.norm);
  if (auto* m = std::get_if<Mamba2Names>(&mixer.mixer)) {
    for (auto* name : {&m->in_proj, &m->conv_weight, &m->conv_bias, &m->a_log, &m->skip,
                       &m->dt_bias, &m->norm, &m->out_proj}) {
      visit(*name);
    }
  } else if (auto* g = std::get_if<GdnNames>(&mixer.mixer)) {
    for (auto* name :
         {&g->in_proj_qkv, &g->in_proj_z, &g->in_proj_b, &g->in_proj_a, &g->in_proj_qkvz,
          &g->in_proj_ba, &g->conv_weight, &g->a_log, &g->dt_bias, &g->norm, &g->out_proj}) {
      visit(*name);
    }
  } else if (auto* a = std::get_if<AttentionNames>(&mixer.mixer)) {
    for (auto* name : {&a->q_proj, &a->k_proj, &a->v_proj, &a->o_proj, &a->q_norm, &a->k_norm}) {
      visit(*name);
    }
  } else if (auto* mlp = std::get_if<MlpNames>(&mixer.mixer)) {
    for (auto* name : {&mlp->gate_proj, &mlp->up_proj, &mlp->down_proj}) visit(*name);
  } else {
    auto& moe = std::get<MoeNames>(mixer.mixer);
    for (auto* name : {&moe.router, &moe.router_bias, &moe.experts, &moe.fused_in, &moe.fused_down,
                       &moe.shared.gate_proj, &moe.shared.up_proj, &moe.shared.down_proj,
                       &moe.shared_gate, &moe.latent_in, &moe.latent_out}) {
      visit(*name);
    }
  }
}

// Every name but the head's; empty ones are none.
template <typename Visit>
void visit_names(TensorNames& names, const Visit& visit) {
  const auto given = [&](std::string& name) {
    if (!name.empty()) visit(name);
  };
  given(names.embedding);
  given(names.final_norm);
  for (auto& layer : names.mixers) {
    for (auto& mixer : layer) visit_mixer(mixer, given);
  }
}

// What stands before "layers.0." in the names of the files.
std::set<std::string> stems_of(const TensorFiles& files) {
  std::set<std::string> out;
  for (const TensorView& tensor : files.tensors()) {
    const std::string_view name = tensor.name;
    for (size_t at = name.find(kFirstLayer); at != name.npos; at = name.find(kFirstLayer, at + 1)) {
      if (at == 0 || name[at - 1] == '.') out.emplace(name.substr(0, at));
    }
  }
  return out;
}

// The name, or one with a segment replaced by a synonym that the files have.
std::string spelled(std::string name, const Stored& stored) {
  if (stored.has(name)) return name;
  const auto segments = segments_of(name);
  for (const std::string_view segment : segments) {
    for (const auto& group : kSynonyms) {
      if (std::find(group.begin(), group.end(), segment) == group.end()) continue;
      const auto at = static_cast<size_t>(segment.data() - name.data());
      for (const std::string_view other : group) {
        std::string changed = name;
        changed.replace(at, segment.size(), other);
        if (stored.has(changed)) return changed;
      }
    }
  }
  return name;
}

std::string best_stem(const TensorFiles& files, const Stored& stored, const std::string& own,
                      TensorNames& names) {
  std::string best = own;
  int64_t most = 0;
  for (const std::string& stem : stems_of(files)) {
    int64_t found = 0;
    visit_names(names, [&](const std::string& name) {
      found += stored.has(stem + name.substr(own.size()));
    });
    if (found > most || (found == most && found > 0 && stem == own)) {
      best = stem;
      most = found;
    }
  }
  return best;
}

// The head stands beside the model or beside what wraps it.
std::string head_of(const std::string& head, const std::string& stem, const Stored& stored) {
  for (std::string_view at = stem;;) {
    const std::string found = spelled(std::string(at) + head, stored);
    if (stored.has(found)) return found;
    if (at.empty()) return head;
    at = at.substr(0, at.size() - 1);
    at = at.substr(0, at.rfind('.') == at.npos ? 0 : at.rfind('.') + 1);
  }
}

// Of a tensor that no part of the text model is: the prefix of all that is skipped with it.
std::string aside_prefix(const std::string& name, const std::string& stem, bool wrapped) {
  const auto segments = segments_of(name), own = segments_of(stem);
  size_t end = 0;
  bool outside = false;
  for (size_t i = 0; i < segments.size(); ++i) {
    end += segments[i].size() + (i + 1 < segments.size() ? 1 : 0);
    outside = outside || i + 1 >= own.size() || segments[i] != own[i];
    if (kAsideParts.contains(segments[i]) || (outside && wrapped)) return name.substr(0, end);
  }
  return {};
}

// What stands before "fc.weight" and the like where the files have a drafting head; it may be saved
// beside the model or within it. Resets the names if there is none.
void resolve_mtp(const TensorFiles& files, const Stored& stored, TensorNames& names) {
  MtpNames& mtp = *names.mtp;
  const std::string own = mtp.prefix, segment = own.substr(own.rfind('.', own.size() - 2) + 1);
  std::set<std::string> prefixes;
  for (const TensorView& tensor : files.tensors()) {
    const size_t at = tensor.name.find(segment);
    if (at == tensor.name.npos || (at > 0 && tensor.name[at - 1] != '.')) continue;
    prefixes.insert(tensor.name.substr(0, at + segment.size()));
  }
  const auto found = std::ranges::find_if(prefixes, [&](const std::string& prefix) {
    return stored.has(prefix + mtp.fc.substr(own.size()));
  });
  if (found == prefixes.end()) {
    names.mtp.reset();
    return;
  }
  const auto visit = [&](std::string& name) {
    if (!name.empty()) name = *found + name.substr(own.size());
  };
  for (auto* name :
       {&mtp.prefix, &mtp.fc, &mtp.norm_embedding, &mtp.norm_hidden, &mtp.final_norm}) {
    visit(*name);
  }
  visit_mixer(mtp.attention, visit);
  visit_mixer(mtp.feed_forward, visit);
}

}  // namespace

void resolve_names(const TensorFiles& files, TensorNames& names) {
  const Stored stored(files);
  const std::string& norm = names.mixers.front().front().norm;
  const std::string own = norm.substr(0, norm.find(kFirstLayer));
  const std::string stem = best_stem(files, stored, own, names);
  visit_names(names,
              [&](std::string& name) { name = spelled(stem + name.substr(own.size()), stored); });
  names.lm_head = head_of(names.lm_head, stem, stored);
  if (names.mtp) resolve_mtp(files, stored, names);

  const std::string layers = stem + "layers.";
  std::set<std::string> skipped;
  for (const TensorView& tensor : files.tensors()) {
    const std::string& name = tensor.name;
    if (is_buffer(tensor)) {
      skipped.insert(name);
      continue;
    }
    const bool run = name.starts_with(layers) || module_of(name) == module_of(names.lm_head) ||
                     module_of(name) == module_of(names.embedding) ||
                     module_of(name) == module_of(names.final_norm);
    if (run) continue;
    const std::string prefix = aside_prefix(name, stem, names.wrapped);
    if (!prefix.empty()) skipped.insert(prefix);
  }
  names.skipped_prefixes.assign(skipped.begin(), skipped.end());
}

}  // namespace replayssm
