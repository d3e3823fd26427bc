// The forward pass, written once over a backend's ops and instantiated by each backend. `Ops` is
// what a pass runs on; its members beside those of the mixers (mixers/*.h name them):
//
//   Types                                  the backend's, as model/weights.h says
//   n_tokens(), n_logits()                 of the pass
//   activation()                           fp32 or bf16
//   embed(weights, residual)               the pass's tokens
//   rope_angles(i, table)                  Model::ropes()[i] at the pass's positions
//   rms_norm(x, weight, eps, y)
//   last_norm(residual, weight, eps, y)    of the tokens that give logits
//   linear(w, x, y), linear_add(w, x, residual)
#pragma once

#include <algorithm>
#include <vector>

#include "model/forward.h"
#include "model/mixers/attention.h"
#include "model/mixers/gdn.h"
#include "model/mixers/mamba2.h"
#include "model/mixers/mlp.h"
#include "model/mixers/moe.h"

namespace replayssm {

// Scratch of a pass; the memory is the arena's. One pass at a time.
class ForwardScratch {
 public:
  ForwardScratch(const Model& model, const ForwardLimits& limits, Arena& arena) {
    const int64_t hidden_size = model.spec().hidden, tokens = limits.max_tokens;
    const int64_t each = dtype_bytes(model.activation());
    residual = arena.take_as<float>("scratch", tokens * hidden_size);
    normed = arena.take("scratch", tokens * hidden_size * each);
    for (const RopeShape& rope : model.ropes()) {
      angles.push_back(arena.take_as<float>("scratch", tokens * rope.rotary_dims));
    }
    int64_t bytes = 0;
    const auto include = [&](const MixerSpec& mixer) {
      MixerScratch count(nullptr);
      std::visit([&](const auto& spec) { scratch_of(count, spec, model.activation(), tokens); },
                 mixer);
      bytes = std::max(bytes, count.used());
    };
    for (const LayerSpec& layer : model.spec().layers) {
      for (const MixerSpec& mixer : layer.mixers) include(mixer);
    }
    if (const auto& mtp = model.spec().mtp) {
      include(mtp->attention);
      include(mtp->feed_forward);
      hidden = arena.take("scratch", tokens * hidden_size * each);
      mtp_in = arena.take("scratch", tokens * 2 * hidden_size * each);
      drafted = arena.take("scratch", limits.max_rows * hidden_size * each);
    }
    mixer = arena.take("scratch", bytes);
    last_normed = arena.take("scratch", limits.max_logits * hidden_size * each);
    logits = arena.take_as<float>("logits", limits.max_logits * model.spec().vocab);
  }

  float* residual = nullptr;    // [max_tokens, hidden]
  void* normed = nullptr;       // [max_tokens, hidden] activation
  std::vector<float*> angles;   // one a rope, [max_tokens, rotary_dims]
  void* mixer = nullptr;        // of the largest mixer
  void* last_normed = nullptr;  // [max_logits, hidden] activation
  float* logits = nullptr;      // [max_logits, vocab]
  // With a drafting head, activation (mtp_pass.h):
  void* hidden = nullptr;   // [max_tokens, hidden] the stream after the final norm
  void* mtp_in = nullptr;   // [max_tokens, 2 hidden] the head's normed inputs
  void* drafted = nullptr;  // [max_rows, hidden] outputs of the last draft pass
};

// Runs the pass that `ops` holds; scratch.logits [n_logits, vocab] has its logits then. Commits
// nothing.
template <typename Ops>
void run_forward(Ops& ops, const ModelSpec& spec, const ModelWeights<typename Ops::Types>& weights,
                 const ForwardScratch& scratch) {
  const int64_t n_tokens = ops.n_tokens(), n_logits = ops.n_logits(), hidden = spec.hidden;
  const ops::Matrix residual{scratch.residual, DType::kF32, n_tokens, hidden, hidden};
  const ops::Matrix normed{scratch.normed, ops.activation(), n_tokens, hidden, hidden};
  const auto norm_of = [&](const float* weight) {
    return ops::NormWeight{weight, spec.zero_centred_norms};
  };
  ops.embed(weights, residual);
  for (size_t i = 0; i < scratch.angles.size(); ++i) ops.rope_angles(i, scratch.angles[i]);
  MixerCall call;
  call.in = normed;
  call.residual = residual;
  call.angles = scratch.angles;
  bool is_normed = false;  // by the mixer before
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    for (size_t j = 0; j < spec.layers[i].mixers.size(); ++j) {
      const auto& mixer = weights.mixers[i][j];
      if (!is_normed) ops.rms_norm(residual, norm_of(mixer.norm), spec.norm_eps, normed);
      const auto* next = weights.after(i, j);
      call.then = {};
      if (next != nullptr) call.then = {norm_of(next->norm), spec.norm_eps, normed};
      MixerScratch places(scratch.mixer);
      is_normed = std::visit(
          [&](const auto& kind) {
            using Spec = std::decay_t<decltype(kind)>;
            using Weights = MixerKind<Spec>::template Weights<typename Ops::Types>;
            const bool done = run_mixer(ops, kind, std::get<Weights>(mixer.mixer), call, places);
            call.n_recurrent += kIsRecurrent<Spec> ? 1 : 0;
            call.n_attention += std::is_same_v<Spec, AttentionSpec> ? 1 : 0;
            return done;
          },
          spec.layers[i].mixers[j]);
    }
  }
  if (n_logits == 0) return;
  const ops::Matrix last{scratch.last_normed, ops.activation(), n_logits, hidden, hidden};
  ops.last_norm(residual, norm_of(weights.final_norm), spec.norm_eps, last);
  ops.linear(weights.head, last, {scratch.logits, DType::kF32, n_logits, spec.vocab, spec.vocab});
}

}  // namespace replayssm
