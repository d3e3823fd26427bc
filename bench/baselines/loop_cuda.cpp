#include "bench/baselines/loop_cuda.h"

#include <algorithm>
#include <atomic>

#include "bench/baselines/fill.h"
#include "bench/baselines/step_kernels.h"
#include "ops/cuda/sample_cuda.h"

namespace replayssm::bench {
namespace {

constexpr int64_t kReserve = int64_t{2} << 30;  // for the driver, modules and graphs
constexpr int32_t kEarlyRows = 64;              // as the engine's steps
constexpr double kGb = 1e9;

StepArrays carve_step(Carver& carver, const PassShape& shape) {
  auto* committed = carver.take<int32_t>(shape.n_rows());
  auto* rows = carver.take<cuda::BaselineRow>(shape.n_rows());
  auto* slots = carver.take<int32_t>(shape.n_tokens);
  return {PassArrays(carver, shape), committed, rows, slots};
}

struct LoopOutcome {
  OutcomeArrays arrays;
  cuda::BaselineRow* rebuild;  // stays on the device

  LoopOutcome(Carver& carver, const PassShape& shape)
      : arrays(carver, shape), rebuild(carver.take<cuda::BaselineRow>(shape.n_rows())) {}
};

std::string gb(int64_t bytes) {
  const auto tenths = static_cast<int64_t>(static_cast<double>(bytes) / kGb * 10 + 0.5);
  return concat(tenths / 10, ".", tenths % 10, " GB");
}

// A state is kept as it is: no ring, and row-major slots.
CudaLayers plan_loop(const Model& model, StateMethod method) {
  CudaLayers out = plan_layers_cuda(model);
  if (method == StateMethod::kReplay) return out;
  for (RecurrentSizes& sizes : out.sizes.recurrent) {
    const Problem& p = sizes.problem;
    const std::string reason = cuda::baseline_reason(p);
    if (!reason.empty()) fail(state_method_name(method), ": ", reason);
    sizes.checkpoint_elements = int64_t{p.n_heads} * p.value_dim * p.key_dim;
    sizes.scale_elements = sizes.value_row = sizes.key_row = sizes.gate_row = 0;
  }
  return out;
}

int64_t gate_columns(const Problem& p) {
  return p.family == Family::kMamba2 ? p.n_heads : 2 * int64_t{p.n_heads};
}

}  // namespace

// The inputs of a window that a method keeps for the next, and what a rebuild needs.
struct LoopCuda::Kept {
  struct Layer {
    char* conv = nullptr;  // bf16 [sets, max_tokens, channels]
    float* gates = nullptr;
  };
  std::vector<Layer> layers;
  int64_t max_tokens = 0;
  std::vector<cuda::BaselineArgs> args;  // of each layer's last pass
};

// The engine's ops with the baselines' recurrence, and with launches left out for timing.
class LoopCuda::Ops : public OpsCuda {
 public:
  Ops(LoopCuda& loop, const PassCuda& pass, const StepArrays& arrays, int32_t kept_set,
      uint32_t parts)
      : OpsCuda(*loop.engine_, *loop.context_, pass, loop.pool_),
        loop_(loop),
        arrays_(arrays),
        kept_set_(kept_set),
        parts_(parts) {}

  void embed(const CudaWeights& w, ops::Matrix residual) const {
    if (has(kRestPart)) OpsCuda::embed(w, residual);
  }
  void rope_angles(size_t rope, float* table) const {
    if (has(kRestPart)) OpsCuda::rope_angles(rope, table);
  }
  void rms_norm(ops::ConstMatrix x, ops::NormWeight w, float eps, ops::Matrix y) const {
    if (has(kRestPart)) OpsCuda::rms_norm(x, w, eps, y);
  }
  void last_norm(ops::ConstMatrix x, ops::NormWeight w, float eps, ops::Matrix y) const {
    if (has(kRestPart)) OpsCuda::last_norm(x, w, eps, y);
  }
  void gated_norm(const ops::GatedNorm& norm, ops::ConstMatrix y, ops::ConstMatrix z,
                  ops::Matrix out) const {
    if (has(kRestPart)) OpsCuda::gated_norm(norm, y, z, out);
  }
  void linear(const ops::cuda::LinearCuda& w, ops::ConstMatrix x, ops::Matrix y) const {
    if (has(kWeightsPart)) OpsCuda::linear(w, x, y);
  }
  void linear_add(const ops::cuda::LinearCuda& w, ops::ConstMatrix x, ops::Matrix residual) const {
    if (has(kWeightsPart)) OpsCuda::linear_add(w, x, residual);
  }
  void copy(ops::ConstMatrix x, ops::Matrix y) const {
    if (has(kRestPart)) OpsCuda::copy(x, y);
  }
  void sigmoid_mul(ops::ConstHeads x, ops::ConstHeads gate, ops::Heads y) const {
    if (has(kRestPart)) OpsCuda::sigmoid_mul(x, gate, y);
  }
  void conv(size_t layer, const float* w, const float* bias, ops::ConstMatrix x,
            ops::Matrix y) const {
    if (has(kRestPart)) OpsCuda::conv(layer, w, bias, x, y);
  }
  void attend(size_t layer, const AttentionPrologue& prologue, float scale, ops::Heads q,
              ops::Heads k, ops::Heads v, ops::Heads y) const {
    if (has(kKvPart)) OpsCuda::attend(layer, prologue, scale, q, k, v, y);
  }
  // An activation goes with its product.
  void activated_linear(MlpKind kind, const ops::cuda::LinearCuda& w, ops::Matrix inner,
                        ops::Matrix y, ops::Matrix out) const {
    if (has(kWeightsPart)) OpsCuda::activated_linear(kind, w, inner, y, out);
  }
  void activated_linear_add(MlpKind kind, const ops::cuda::LinearCuda& w, ops::Matrix inner,
                            ops::Matrix y, ops::Matrix residual) const {
    if (has(kWeightsPart)) OpsCuda::activated_linear_add(kind, w, inner, y, residual);
  }
  template <typename Work>
  void beside(const Work& work) const {
    engine_.branch->fork();
    Ops side = *this;
    side.context_ = &engine_.branch->context();
    work(side);
  }
  void route(const ops::Router& router, ops::ConstMatrix logits, int32_t* experts,
             float* weights) const {
    if (has(kRestPart)) OpsCuda::route(router, logits, experts, weights);
  }
  void run_experts(const MoeSpec& spec, const CudaTypes::Experts& experts, ops::ConstMatrix x,
                   const MoeScratch& scratch) const {
    if (has(kWeightsPart)) OpsCuda::run_experts(spec, experts, x, scratch);
  }
  void sum_experts(const MoeSpec& spec, const MoeScratch& scratch, ops::Matrix y) const {
    if (has(kRestPart)) OpsCuda::sum_experts(spec, scratch, y);
  }
  bool sum_experts_add(const MoeSpec& spec, const MoeScratch& scratch, const SharedExpert& shared,
                       ops::Matrix residual, const NextNorm& then) const {
    if (has(kRestPart)) return OpsCuda::sum_experts_add(spec, scratch, shared, residual, then);
    return then.y.data != nullptr;
  }
  bool linear_shared_add(const ops::cuda::LinearCuda& w, ops::ConstMatrix x,
                         const SharedExpert& shared, ops::Matrix residual,
                         const NextNorm& then) const {
    if (has(kWeightsPart)) return OpsCuda::linear_shared_add(w, x, shared, residual, then);
    return then.y.data != nullptr;
  }

  void recurrence_inputs(size_t layer, ops::Matrix& conv, ops::Matrix& gates) const {
    if (loop_.kept_->layers.empty()) return;
    const Kept::Layer& kept = loop_.kept_->layers[layer];
    const int64_t first = kept_set_ * loop_.kept_->max_tokens;
    conv.data = kept.conv + 2 * first * conv.cols;
    gates.data = kept.gates + first * gates.cols;
  }

  void recurrence(size_t layer, const StepArgs& args) const {
    if (!has(kStatePart)) return;
    const StateMethod method = loop_.options_.method;
    if (method == StateMethod::kReplay) return OpsCuda::recurrence(layer, args);
    const RecurrentSizes& sizes = loop_.layers_.sizes.recurrent[layer];
    cuda::BaselineArgs baseline;
    baseline.inputs = {args.query, args.key, args.value, args.gate, args.beta};
    baseline.kept = baseline.inputs;
    baseline.a_log = args.a_log;
    baseline.dt_bias = args.dt_bias;
    baseline.skip = args.skip;
    baseline.out = args.out;
    baseline.state = pool_.recurrent[layer].checkpoint;
    baseline.state_slot_stride = sizes.checkpoint_elements;
    baseline.rows = arrays_.state_rows;
    baseline.n_rows = pass_.n_step;
    if (method == StateMethod::kPlain || method == StateMethod::kSnapshots) {
      baseline.snapshot_slots = arrays_.snapshot_slots;
      baseline.snapshot_stride = pass_.longest;
    }
    if (method == StateMethod::kJointAdvance) {
      // The window before is in the other set, at the same places.
      const int64_t sets = kept_set_ == 0 ? 1 : -1;
      const auto other = [&](Tokens t, int64_t element_bytes) {
        if (t.data == nullptr) return t;
        const int64_t elements = sets * loop_.kept_->max_tokens * t.token_stride;
        return Tokens{static_cast<const char*>(t.data) + elements * element_bytes, t.token_stride};
      };
      baseline.kept = {other(args.query, 2), other(args.key, 2), other(args.value, 2),
                       other(args.gate, 4), other(args.beta, 4)};
    }
    loop_.kept_->args[layer] = baseline;
    cuda::baseline_step(sizes.problem, baseline, context().stream(),
                        /*early=*/pass_.n_step <= kEarlyRows);
  }

 private:
  bool has(Part part) const { return (parts_ & part) != 0; }

  LoopCuda& loop_;
  const StepArrays& arrays_;
  int32_t kept_set_;
  uint32_t parts_;
};

// What a shape has: its arrays, and its graphs once they are captured.
struct LoopCuda::Block {
  explicit Block(const PassShape& shape) {
    Carver step_count(nullptr), outcome_count(nullptr);
    carve_step(step_count, shape);
    const LoopOutcome counted(outcome_count, shape);
    step = Staged(step_count.used());
    step_bytes = step_count.used();
    outcome = Staged(outcome_count.used());
    outcome_bytes = outcome_count.used();
    Carver step_places(step.host()), outcome_places(outcome.host());
    arrays.emplace(carve_step(step_places, shape));
    outcomes.emplace(outcome_places, shape);
  }

  int64_t step_bytes = 0, outcome_bytes = 0;
  Staged step, outcome;
  std::optional<StepArrays> arrays;
  std::optional<LoopOutcome> outcomes;
  std::vector<Graph> graphs;  // by kept set
};

LoopCuda::LoopCuda(const Model& model, const OpenWeights& weights, const LoopOptions& options)
    : model_(model),
      options_(options),
      layers_(plan_loop(model, options.method)),
      kept_(std::make_unique<Kept>()),
      released_(int64_t{sizeof(uint64_t)}) {
  const auto source = weights(model);
  const auto needed = [&](int32_t rows) {
    options_.max_rows = rows;
    CountingArena counter(DeviceArena::kAlignment);
    take_weights_cuda(model.description(), counter, *source);
    build(counter);
    return counter.used();
  };
  const int64_t budget = free_device_bytes() - kReserve;
  const int64_t bytes = needed(options.max_rows);
  if (bytes > budget) {
    int32_t fits = 0, fails = options.max_rows;
    while (fits + 1 < fails) {
      const int32_t middle = fits + (fails - fits) / 2;
      (needed(middle) <= budget ? fits : fails) = middle;
    }
    throw DoesNotFit(concat(options.max_rows, " sequences of ", options.max_positions,
                            " positions need ", gb(bytes), ", there are ", gb(budget), ": ", fits,
                            " would fit"));
  }
  arena_ = std::make_unique<DeviceArena>(bytes);
  weights_ = take_weights_cuda(model.description(), *arena_, *source);
  build(*arena_);
  const auto mode = options.exact ? ops::cuda::Mode::kExact : ops::cuda::Mode::kFast;
  context_ = std::make_unique<ops::cuda::CudaContext>(stream_.get(), workspace_, mode);
  engine_->prepare(*context_);
  check_cuda(cudaMemset(n_passed_, 0, sizeof *n_passed_), "cudaMemset");
  fill_state();
}

// What waits on the device runs to its end: its memory goes.
LoopCuda::~LoopCuda() {
  let_run(n_launched_);
  cudaStreamSynchronize(stream_.get());
}

void LoopCuda::let_run(uint64_t n_steps) {
  n_released_ = n_steps;
  std::atomic_ref(*reinterpret_cast<uint64_t*>(released_.data()))
      .store(n_steps, std::memory_order_release);
}

// Everything but the weights; called to count and to take.
void LoopCuda::build(Arena& arena) {
  const int32_t window = model_.options().max_window;
  const PassShape largest = pass_shape({options_.max_rows, window});
  PoolSizes sizes;
  sizes.checkpoint_slots =
      options_.max_rows * (options_.method == StateMethod::kSnapshots ? window : 1);
  sizes.ring_slots = options_.max_rows;
  sizes.kv_pages = static_cast<int32_t>(options_.max_rows * pages_each());
  pool_ = take_pool(layers_.sizes, sizes, arena);
  kept_->max_tokens = largest.n_tokens;
  kept_->args.resize(layers_.recurrent.size());
  kept_->layers.clear();
  const int64_t kept = kept_sets(options_.method) * largest.n_tokens;
  for (const RecurrentSizes& layer : layers_.sizes.recurrent) {
    if (kept == 0) break;
    kept_->layers.push_back(
        {arena.take_as<char>("kept inputs", kept * layer.conv_row_bytes()),
         arena.take_as<float>("kept inputs", kept * gate_columns(layer.problem))});
  }
  engine_.emplace(model_, layers_, arena);
  scratch_.emplace(
      model_,
      ForwardLimits{largest.n_tokens, options_.max_rows, largest.n_tokens, options_.max_positions},
      arena);
  workspace_ = arena.take("scratch", ops::cuda::CudaContext::kWorkspaceBytes);
  Carver step(nullptr), outcome(nullptr);
  carve_step(step, largest);
  const LoopOutcome counted(outcome, largest);
  step_block_ = arena.take_as<char>("scratch", step.used());
  outcome_block_ = arena.take_as<char>("scratch", outcome.used());
  n_passed_ = arena.take_as<uint64_t>("scratch", 1);
}

PassShape LoopCuda::pass_shape(StepShape shape) const {
  PassShape out;
  out.n_step = shape.rows;
  out.n_tokens = out.n_logits = shape.tokens();
  out.longest = shape.window;
  out.single = shape.window == 1;
  out.n_pages = pages_each();
  return out;
}

// Finite values everywhere, as if sequences had run.
void LoopCuda::fill_state() {
  uint64_t key = uint64_t{1} << 32;
  const auto fill = [&](void* data, DType dtype, int64_t n, float mean, float scale) {
    if (data != nullptr) cuda::fill(data, dtype, n, key++, mean, scale, stream_.get());
  };
  const PoolSizes& sizes = pool_.sizes;
  for (size_t i = 0; i < layers_.sizes.recurrent.size(); ++i) {
    const RecurrentSizes& layer = layers_.sizes.recurrent[i];
    const RecurrentPool& pool = pool_.recurrent[i];
    const Problem& p = layer.problem;
    const int64_t rows = int64_t{sizes.ring_slots} * p.grid.ring_rows;
    const bool mamba = p.family == Family::kMamba2;
    fill(pool.checkpoint, p.checkpoint, sizes.checkpoint_slots * layer.checkpoint_elements, 0,
         p.checkpoint == DType::kI8 ? 100.0f : 0.3f);
    fill(pool.scale, DType::kF32, sizes.checkpoint_slots * layer.scale_elements, 0.003f, 0.001f);
    fill(pool.ring_value, p.ring, rows * layer.value_row, 0, 0.5f);
    // GDN's keys have length one.
    fill(pool.ring_key, p.ring, rows * layer.key_row, 0, mamba ? 1.0f : 0.15f);
    fill(pool.ring_gate, DType::kF32, rows * layer.gate_row, mamba ? 0.05f : -0.05f, 0.04f);
    fill(pool.conv, DType::kBF16,
         int64_t{sizes.ring_slots} * layer.conv.ring_rows * layer.conv.n_channels, 0, 1);
    if (kept_->layers.empty()) continue;
    const int64_t kept = kept_sets(options_.method) * kept_->max_tokens;
    fill(kept_->layers[i].conv, DType::kBF16, kept * layer.conv.n_channels, 0, 1);
    fill(kept_->layers[i].gates, DType::kF32, kept * gate_columns(p), 0, 1);
  }
  for (const ops::KvPool& kv : pool_.kv) {
    fill(kv.data, DType::kBF16, sizes.kv_pages * kv.page_stride_bytes / 2, 0, 1);
  }
  check_cuda(cudaGetLastError(), "filling of pools");
  stream_.wait();
}

LoopCuda::Block& LoopCuda::block(StepShape shape) {
  REPLAYSSM_CHECK(shape.rows >= 1 && shape.rows <= options_.max_rows && shape.window >= 1 &&
                      shape.window <= model_.options().max_window,
                  shape.rows, " rows of ", shape.window);
  auto& found = blocks_[shape];
  if (found == nullptr) {
    found = std::make_unique<Block>(pass_shape(shape));
    const PassArrays& pass = found->arrays->pass;
    for (int64_t i = 0; i < shape.tokens(); ++i) {
      pass.logit_tokens[i] = i;
      pass.draw_params[i] = {};
    }
    for (int32_t r = 0; r < shape.rows; ++r) {
      for (int64_t p = 0; p < pages_each(); ++p) {
        pass.pages[r * pages_each() + p] = static_cast<int32_t>(r * pages_each() + p);
      }
    }
  }
  return *found;
}

StepArrays LoopCuda::arrays(StepShape shape) { return *block(shape).arrays; }

void LoopCuda::enqueue(Block& block, StepShape shape, int32_t kept_set, uint32_t parts,
                       bool copies) {
  const PassShape sizes = pass_shape(shape);
  Carver step(step_block_), out(outcome_block_);
  const StepArrays device = carve_step(step, sizes);
  const LoopOutcome outcome(out, sizes);
  const auto copy = [&](void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_.get()),
               "copy of a step");
  };
  if (copies) copy(step_block_, block.step.pinned(), block.step_bytes, cudaMemcpyHostToDevice);
  const PassCuda pass = pass_of(sizes, device.pass);
  Ops ops(*this, pass, device, kept_set, parts);
  run_forward(ops, model_.spec(), weights_, *scratch_);
  if ((parts & kRestPart) != 0) {
    const int64_t vocab = model_.spec().vocab;
    ops::cuda::argmax(*context_, {scratch_->logits, DType::kF32, shape.tokens(), vocab, vocab},
                      outcome.arrays.tokens);
    ops::cuda::verify(
        *context_, {device.pass.row_tokens, device.pass.first_token, nullptr, shape.rows},
        device.pass.tokens, outcome.arrays.tokens, outcome.arrays.n_accepted, outcome.arrays.next);
    cuda::force_accepted(shape.rows, device.committed, device.pass.first_token,
                         outcome.arrays.tokens, outcome.arrays.n_accepted, outcome.arrays.next,
                         stream_.get());
  }
  if (options_.method == StateMethod::kActivationReplay && (parts & kStatePart) != 0) {
    // The second pass over the states, once it is known which tokens are accepted.
    cuda::make_rebuild_rows(shape.rows, device.state_rows, outcome.arrays.n_accepted,
                            outcome.rebuild, stream_.get());
    for (size_t i = 0; i < layers_.recurrent.size(); ++i) {
      cuda::BaselineArgs args = kept_->args[i];
      args.rows = outcome.rebuild;
      cuda::baseline_step(layers_.sizes.recurrent[i].problem, args, stream_.get());
    }
  }
  if (copies) {
    // All but the rebuild rows, which come last.
    const int64_t bytes = reinterpret_cast<char*>(outcome.rebuild) - outcome_block_;
    copy(block.outcome.pinned(), outcome_block_, bytes, cudaMemcpyDeviceToHost);
  }
}

void LoopCuda::prepare(StepShape shape) {
  Block& b = block(shape);
  b.step.send(b.step_bytes);
  enqueue(b, shape, 0, kAllParts, /*copies=*/true);  // products choose their algorithms
  stream_.wait();
  b.graphs.clear();
  for (int set = 0; set < std::max(1, kept_sets(options_.method)); ++set) {
    b.graphs.push_back(Graph::capture(stream_, [&] {
      const auto* released = reinterpret_cast<const uint64_t*>(released_.data());
      cuda::wait_for_release(released, n_passed_, stream_.get());
      enqueue(b, shape, set, kAllParts, /*copies=*/true);
    }));
  }
}

void LoopCuda::launch(StepShape shape, int32_t kept_set) {
  const std::vector<Graph>& graphs = block(shape).graphs;
  REPLAYSSM_CHECK(kept_set >= 0 && kept_set < std::ssize(graphs), "no graph of ", shape.rows,
                  " rows of ", shape.window);
  REPLAYSSM_CHECK(n_launched_ < n_waited_ + 2, "a third step at once");
  graphs[static_cast<size_t>(kept_set)].launch(stream_);
  ends_[n_launched_++ % 2].record(stream_);
}

void LoopCuda::release(StepShape shape) {
  REPLAYSSM_CHECK(n_released_ < n_launched_ && n_released_ == n_waited_, n_launched_, " launched, ",
                  n_released_, " released, ", n_waited_, " waited for");
  Block& b = block(shape);
  b.step.send(b.step_bytes);
  let_run(n_released_ + 1);
}

StepOutcome LoopCuda::wait(StepShape shape) {
  REPLAYSSM_CHECK(n_waited_ < n_released_, "no step runs");
  ends_[n_waited_++ % 2].wait();
  Block& b = block(shape);
  b.outcome.receive(b.outcome_bytes);
  return {b.outcomes->arrays.n_accepted, b.outcomes->arrays.next};
}

double LoopCuda::time_parts(StepShape shape, uint32_t parts, int repeats) {
  Block& b = block(shape);
  const Graph graph =
      Graph::capture(stream_, [&] { enqueue(b, shape, 0, parts, /*copies=*/false); });
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
  check_cuda(cudaEventCreate(&end), "cudaEventCreate");
  graph.launch(stream_);
  check_cuda(cudaEventRecord(begin, stream_.get()), "cudaEventRecord");
  for (int i = 0; i < repeats; ++i) graph.launch(stream_);
  check_cuda(cudaEventRecord(end, stream_.get()), "cudaEventRecord");
  stream_.wait();
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return static_cast<double>(ms) / repeats;
}

// Mixers share their scratch: a mixture's choice is there after a pass if it comes last.
double LoopCuda::experts_read() const {
  const auto* moe = std::get_if<MoeSpec>(&model_.spec().layers.back().mixers.back());
  if (moe == nullptr || blocks_.empty()) return 0;
  MixerScratch places(scratch_->mixer);
  const MoeScratch s = scratch_of(places, *moe, DType::kBF16, blocks_.begin()->first.tokens());
  std::vector<int32_t> first(static_cast<size_t>(moe->n_experts) + 1);
  check_cuda(
      cudaMemcpy(first.data(), s.first, first.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
      "cudaMemcpy");
  double n = 0;
  for (size_t e = 0; e + 1 < first.size(); ++e) n += first[e + 1] > first[e] ? 1 : 0;
  return n;
}

}  // namespace replayssm::bench
