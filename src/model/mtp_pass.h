// The drafting head of a model (MtpSpec), over the same ops as the forward pass. Its cache is one
// more attention layer's, in the same pages; entry s is made of x_s and h_{s-1}, so that a page
// depends on tokens up to its end. There is no entry 0: it is written, finite, and never attended
// to.
//
// Ops, beside those of the forward pass:
//   previous_hidden(hidden, y)    y[t] = h at the position before token t's, of the pass or of the
//   ring keep_hidden(hidden)           the last rows of each window to the ring of hidden states
#pragma once

#include "model/forward_pass.h"

namespace replayssm {

// residual = z of the pass's tokens, whose hidden states before them are in `previous`, activation.
template <typename Ops>
void mtp_input(Ops& ops, const ModelSpec& spec, const ModelWeights<typename Ops::Types>& weights,
               ops::ConstMatrix previous, const ForwardScratch& scratch, ops::Matrix residual) {
  const int64_t hidden = spec.hidden;
  const ops::Matrix in{scratch.mtp_in, ops.activation(), residual.rows, 2 * hidden, 2 * hidden};
  const auto norm_of = [&](const float* weight) {
    return ops::NormWeight{weight, spec.zero_centred_norms};
  };
  ops.embed(weights, residual);
  ops.rms_norm(residual, norm_of(weights.mtp->norm_embedding), spec.norm_eps,
               in.slice_cols(0, hidden));
  ops.rms_norm(previous, norm_of(weights.mtp->norm_hidden), spec.norm_eps,
               in.slice_cols(hidden, hidden));
  ops.linear(weights.mtp->fc, in, residual);
}

// After run_forward() of the same pass: the head's entries for all its tokens. `layer`: the head's
// among the attention layers.
template <typename Ops>
void run_mtp_entries(Ops& ops, const ModelSpec& spec,
                     const ModelWeights<typename Ops::Types>& weights, size_t layer,
                     const ForwardScratch& scratch) {
  const int64_t n = ops.n_tokens(), width = spec.hidden;
  const ops::Matrix residual{scratch.residual, DType::kF32, n, width, width};
  const ops::Matrix normed{scratch.normed, ops.activation(), n, width, width};
  const ops::Matrix hidden{scratch.hidden, ops.activation(), n, width, width};
  ops.rms_norm(residual, {weights.final_norm, spec.zero_centred_norms}, spec.norm_eps, hidden);
  ops.previous_hidden(hidden, normed);
  ops.keep_hidden(hidden);
  mtp_input(ops, spec, weights, normed, scratch, residual);

  const auto& attention = weights.mtp->attention;
  ops.rms_norm(residual, {attention.norm, spec.zero_centred_norms}, spec.norm_eps, normed);
  MixerCall call;
  call.in = normed;
  call.angles = scratch.angles;
  call.n_attention = layer;
  MixerScratch places(scratch.mixer);
  run_entries(ops, spec.mtp->attention,
              std::get<AttentionWeights<typename Ops::Types>>(attention.mixer), call, places);
}

// One token of each of some sequences, and the hidden states before them in scratch.normed: outputs
// in scratch.drafted, their logits in scratch.logits [n_tokens, vocab].
template <typename Ops>
void run_mtp_draft(Ops& ops, const ModelSpec& spec,
                   const ModelWeights<typename Ops::Types>& weights, size_t layer,
                   const ForwardScratch& scratch) {
  const int64_t n = ops.n_tokens(), width = spec.hidden;
  const ops::Matrix residual{scratch.residual, DType::kF32, n, width, width};
  const ops::Matrix normed{scratch.normed, ops.activation(), n, width, width};
  const ops::Matrix drafted{scratch.drafted, ops.activation(), n, width, width};
  const auto norm_of = [&](const float* weight) {
    return ops::NormWeight{weight, spec.zero_centred_norms};
  };
  for (size_t i = 0; i < scratch.angles.size(); ++i) ops.rope_angles(i, scratch.angles[i]);
  mtp_input(ops, spec, weights, normed, scratch, residual);
  MixerCall call;
  call.in = normed;
  call.residual = residual;
  call.angles = scratch.angles;
  call.n_attention = layer;
  const auto run = [&](const MixerSpec& mixer, const MixerWeights<typename Ops::Types>& of) {
    ops.rms_norm(residual, norm_of(of.norm), spec.norm_eps, normed);
    MixerScratch places(scratch.mixer);
    std::visit(
        [&](const auto& kind) {
          using Weights =
              MixerKind<std::decay_t<decltype(kind)>>::template Weights<typename Ops::Types>;
          run_mixer(ops, kind, std::get<Weights>(of.mixer), call, places);
        },
        mixer);
  };
  run(spec.mtp->attention, weights.mtp->attention);
  run(spec.mtp->feed_forward, weights.mtp->feed_forward);
  ops.rms_norm(residual, norm_of(weights.mtp->final_norm), spec.norm_eps, drafted);
  ops.linear(weights.head, drafted, {scratch.logits, DType::kF32, n, spec.vocab, spec.vocab});
}

}  // namespace replayssm
