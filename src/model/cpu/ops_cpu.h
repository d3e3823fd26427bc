// The CPU's ops of a forward pass (forward_pass.h).
#pragma once

#include <span>
#include <vector>

#include "model/cpu/types_cpu.h"
#include "model/forward.h"
#include "model/mixers/attention.h"
#include "model/mixers/moe.h"
#include "ops/elementwise.h"
#include "ops/rope.h"

namespace replayssm {

// The windows of a pass, sorted by what each kernel takes.
struct PassRowsCpu {
  std::vector<Row> rows;  // step rows, then sweep rows
  size_t n_step = 0;
  std::vector<ops::AttentionRow> windows;  // of rows with tokens
  std::vector<int64_t> positions;          // [max_tokens]
  std::vector<int32_t> tokens;             // of a draft pass

  // Takes the memory of passes within the limits.
  explicit PassRowsCpu(const ForwardLimits& limits);
  void sort(const ForwardBatch& batch);
  // A draft pass: a window of one token each. There is no entry at position 0.
  void take(std::span<const DraftRow> drafts);
  int64_t bytes() const;
};

// What passes share.
struct EngineCpu {
  EngineCpu(const Model& model, const CpuLayers& layers, const ops::Context& context,
            const ForwardLimits& limits, Arena& arena);

  const Model& model;
  const CpuLayers& layers;
  const ops::Context& context;
  ParallelFor parallel;
  std::vector<ops::Rope> ropes;
  float* mixed;     // [max_tokens, hidden]: a mixer's output before it joins the stream
  float* last;      // [max_logits, hidden]
  void* workspace;  // of the largest plan
  int64_t n_saturated = 0;
};

class OpsCpu {
 public:
  using Types = CpuTypes;

  OpsCpu(EngineCpu& engine, const ForwardBatch& batch, const PassRowsCpu& rows, StatePool& pool)
      : engine_(engine), batch_(batch), rows_(rows), pool_(pool) {}

  int64_t n_tokens() const { return std::ssize(batch_.tokens); }
  int64_t n_logits() const { return std::ssize(batch_.logit_tokens); }
  DType activation() const { return engine_.model.activation(); }
  int32_t rope_of(size_t layer) const { return engine_.model.attention()[layer].rope; }
  static int64_t n_outputs(const ops::Linear& w) { return w.n_out(); }

  void embed(const CpuWeights& weights, ops::Matrix residual) const;
  void rope_angles(size_t rope, float* table) const {
    engine_.ropes[rope].angles(context(), rows_.positions.data(), n_tokens(), table);
  }
  void rms_norm(ops::ConstMatrix x, ops::NormWeight weight, float eps, ops::Matrix y) const {
    ops::rms_norm(context(), x, weight, eps, y);
  }
  void last_norm(ops::ConstMatrix residual, ops::NormWeight weight, float eps, ops::Matrix y) const;
  void gated_norm(const ops::GatedNorm& norm, ops::ConstMatrix y, ops::ConstMatrix z,
                  ops::Matrix out) const {
    ops::gated_norm(context(), norm, y, z, out);
  }
  void linear(const ops::Linear& w, ops::ConstMatrix x, ops::Matrix y) const {
    w.run(context(), x, y);
  }
  void linear_add(const ops::Linear& w, ops::ConstMatrix x, ops::Matrix residual) const;
  void copy(ops::ConstMatrix x, ops::Matrix y) const { ops::copy(context(), x, y); }
  void sigmoid_mul(ops::ConstHeads x, ops::ConstHeads gate, ops::Heads y) const {
    ops::sigmoid_mul(context(), x, gate, y);
  }

  void recurrence_inputs(size_t, ops::Matrix&, ops::Matrix&) const {}  // stay where they are
  void conv(size_t layer, const float* weight, const float* bias, ops::ConstMatrix x,
            ops::Matrix y) const;
  void recurrence(size_t layer, StepArgs args) const;
  void attend(size_t layer, const AttentionPrologue& prologue, float scale, ops::Heads q,
              ops::Heads k, ops::Heads v, ops::Heads y) const;

  void remember(size_t layer, const AttentionPrologue& prologue, ops::Heads k, ops::Heads v) const;
  void previous_hidden(ops::ConstMatrix hidden, ops::Matrix y) const;
  void keep_hidden(ops::ConstMatrix hidden) const;

  void activated_linear(MlpKind kind, const ops::Linear& w, ops::Matrix inner, ops::Matrix y,
                        ops::Matrix out) const;
  void activated_linear_add(MlpKind kind, const ops::Linear& w, ops::Matrix inner, ops::Matrix y,
                            ops::Matrix residual) const;

  template <typename Work>
  void beside(const Work& work) {
    work(*this);
  }
  void join() const {}
  void route(const ops::Router& router, ops::ConstMatrix logits, int32_t* experts,
             float* weights) const {
    ops::route(context(), router, logits, experts, weights);
  }
  void run_experts(const MoeSpec& spec, const CpuTypes::Experts& experts, ops::ConstMatrix x,
                   const MoeScratch& scratch) const;
  void sum_experts(const MoeSpec& spec, const MoeScratch& scratch, ops::Matrix y) const {
    ops::sum_rows(context(), scratch.out, scratch.row, scratch.weights, spec.top_k, y);
  }
  bool sum_experts_add(const MoeSpec& spec, const MoeScratch& scratch, const SharedExpert& shared,
                       ops::Matrix residual, const NextNorm& then) const;
  bool linear_shared_add(const ops::Linear& w, ops::ConstMatrix x, const SharedExpert& shared,
                         ops::Matrix residual, const NextNorm& then) const;

 protected:
  const ops::Context& context() const { return engine_.context; }
  ops::Matrix mixed(ops::ConstMatrix residual) const {
    return {engine_.mixed, DType::kF32, residual.rows, residual.cols, residual.cols};
  }
  void add_shared(ops::Matrix mixed, const SharedExpert& shared) const;
  void prepare(ops::Heads x, ops::NormWeight norm, const AttentionPrologue& prologue) const;

  EngineCpu& engine_;
  const ForwardBatch& batch_;
  const PassRowsCpu& rows_;
  StatePool& pool_;
};

}  // namespace replayssm
