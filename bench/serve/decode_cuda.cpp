#include "bench/serve/decode_cuda.h"

#include <algorithm>
#include <atomic>

#include "bench/serve/step_kernels.h"
#include "core/error.h"
#include "core/memory.h"
#include "ops/attention.h"
#include "ops/cuda/sample_cuda.h"

namespace replayssm::bench {
namespace {

constexpr int64_t kReserve = int64_t{2} << 30;  // for the driver, modules and graphs
constexpr double kGb = 1e9;

// All but the pages.
StepArrays carve_step(Carver& carver, const PassShape& shape, StateMethod way) {
  StepArrays out = {WindowArrays(carver, shape), nullptr, nullptr, nullptr, nullptr};
  out.stands = carver.take<int32_t>(shape.n_rows());
  if (way != StateMethod::kReplay) {
    out.state_rows = carver.take<cuda::BaselineRow>(shape.n_rows());
    out.snapshot_slots = carver.take<int32_t>(shape.n_tokens);
  }
  return out;
}

struct OutcomeArrays {
  int32_t *n_accepted, *next, *drawn;
  cuda::BaselineRow* rebuild;  // stays on the device
};

OutcomeArrays carve_outcome(Carver& carver, const PassShape& shape) {
  OutcomeArrays out;
  out.n_accepted = carver.take<int32_t>(shape.n_rows());
  out.next = carver.take<int32_t>(shape.n_rows());
  out.drawn = carver.take<int32_t>(shape.n_tokens);
  out.rebuild = carver.take<cuda::BaselineRow>(shape.n_rows());
  return out;
}

std::string gb(int64_t bytes) {
  const auto tenths = static_cast<int64_t>(static_cast<double>(bytes) / kGb * 10 + 0.5);
  return concat(tenths / 10, ".", tenths % 10, " GB");
}

}  // namespace

// What a shape has: its arrays, and its graphs once they are captured.
struct DecodeCuda::Block {
  Block(const PassShape& shape, StateMethod way)
      : page_bytes(shape.n_rows() * shape.n_pages * int64_t{sizeof(int32_t)}),
        pages(static_cast<size_t>(page_bytes)) {
    Carver step_count(nullptr), outcome_count(nullptr);
    carve_step(step_count, shape, way);
    carve_outcome(outcome_count, shape);
    step_bytes = step_count.used();
    outcome_bytes = outcome_count.used();
    step = Staged(step_bytes);
    outcome = Staged(outcome_bytes);
    Carver step_places(step.host()), outcome_places(outcome.host());
    arrays.emplace(carve_step(step_places, shape, way));
    arrays->pages = pages.as<int32_t>();
    outcomes = carve_outcome(outcome_places, shape);
  }

  int64_t page_bytes, step_bytes, outcome_bytes;
  Staged step, outcome;
  Buffer pages;
  std::optional<StepArrays> arrays;
  OutcomeArrays outcomes;
  std::vector<Graph> graphs;  // by kept set
};

DecodeCuda::DecodeCuda(const ModelDescription& description, const std::string& folder,
                       bool dummy_weights, const DecodeCudaOptions& options)
    : options_(options),
      model_(plan_model(description, options.model)),
      released_(int64_t{sizeof(uint64_t)}) {
  check_device();
  const auto source = dummy_weights ? replayssm::dummy_weights(model_.options.weights, stream_)
                                    : file_weights(description, folder);
  const auto needed = [&](int32_t rows) {
    options_.max_rows = rows;
    DeviceArena counter;
    take_weights(model_.description, counter, *source);
    build(counter);
    return counter.used();
  };
  const int64_t free = free_device_bytes() - kReserve;
  const int64_t budget = options.memory_bytes == 0 ? free : options.memory_bytes;
  const int64_t bytes = needed(options.max_rows);
  if (bytes > budget || bytes > free) {
    const int64_t most = std::min(budget, free);
    int32_t fits = 0, fails = options.max_rows;
    while (fits + 1 < fails) {
      const int32_t middle = fits + (fails - fits) / 2;
      (needed(middle) <= most ? fits : fails) = middle;
    }
    throw DoesNotFit(concat(options.max_rows, " sequences of ", options.max_positions,
                            " positions need ", gb(bytes), ", there are ", gb(most), ": ", fits,
                            " would fit"));
  }
  options_.max_rows = options.max_rows;
  arena_ = std::make_unique<DeviceArena>(bytes);
  model_.weights = take_weights(model_.description, *arena_, *source);
  build(*arena_);
  const auto mode = options.exact ? ops::cuda::Mode::kExact : ops::cuda::Mode::kFast;
  context_ = std::make_unique<ops::cuda::CudaContext>(stream_.get(), workspace_, mode);
  forward_->prepare(*context_);
  check_cuda(cudaMemset(n_passed_, 0, sizeof *n_passed_), "cudaMemset");
}

// What waits on the device runs to its end: its memory goes.
DecodeCuda::~DecodeCuda() {
  let_run(n_launched_);
  cudaStreamSynchronize(stream_.get());
}

void DecodeCuda::let_run(uint64_t n_steps) {
  n_released_ = n_steps;
  std::atomic_ref(*reinterpret_cast<uint64_t*>(released_.data()))
      .store(n_steps, std::memory_order_release);
}

int64_t DecodeCuda::pages_each() const { return ops::pages_for(options_.max_positions); }

int32_t DecodeCuda::slots_each() const {
  return model_.options.way == StateMethod::kSnapshots ? model_.options.max_window : 1;
}

// Everything but the weights; called once to count and once to take.
void DecodeCuda::build(DeviceArena& arena) {
  const PassShape largest = pass_shape({options_.max_rows, model_.options.max_window});
  PoolSizesCuda sizes;
  sizes.state_slots = options_.max_rows * slots_each();
  sizes.ring_slots = options_.max_rows;
  sizes.kv_pages = static_cast<int32_t>(options_.max_rows * pages_each());
  sizes.kept_tokens = largest.n_tokens;
  pools_ = take_pools(model_, sizes, arena);
  forward_.emplace(model_, ForwardCudaLimits{largest.n_tokens, largest.n_tokens}, arena);
  workspace_ = arena.take("scratch", ops::cuda::CudaContext::kWorkspaceBytes);
  Carver step(nullptr), outcome(nullptr);
  carve_step(step, largest, model_.options.way);
  carve_outcome(outcome, largest);
  step_block_ = arena.take_as<char>("scratch", step.used());
  page_table_ = arena.take_as<int32_t>("scratch", options_.max_rows * pages_each());
  outcome_block_ = arena.take_as<char>("scratch", outcome.used());
  n_passed_ = arena.take_as<uint64_t>("scratch", 1);
}

PassShape DecodeCuda::pass_shape(StepShape shape) const {
  PassShape out;
  out.n_step = shape.rows;
  out.n_tokens = out.n_logits = shape.tokens();
  out.longest = shape.window;
  out.single = shape.window == 1;
  out.n_pages = pages_each();
  return out;
}

void DecodeCuda::fill_state() { fill_pools(model_, pools_, stream_); }

DecodeCuda::Block& DecodeCuda::block(StepShape shape) {
  REPLAYSSM_CHECK(shape.rows >= 1 && shape.rows <= options_.max_rows && shape.window >= 1 &&
                      shape.window <= model_.options.max_window,
                  shape.rows, " rows of ", shape.window);
  auto& found = blocks_[shape];
  if (found == nullptr) found = std::make_unique<Block>(pass_shape(shape), model_.options.way);
  return *found;
}

StepArrays DecodeCuda::arrays(StepShape shape) { return *block(shape).arrays; }

void DecodeCuda::send_pages(StepShape shape) {
  const Block& b = block(shape);
  check_cuda(cudaMemcpyAsync(page_table_, b.pages.data(), static_cast<size_t>(b.page_bytes),
                             cudaMemcpyHostToDevice, stream_.get()),
             "copy of pages");
}

void DecodeCuda::enqueue(Block& block, StepShape shape, int32_t kept_set, uint32_t parts,
                         bool copies) {
  const PassShape sizes = pass_shape(shape);
  Carver step(step_block_), outcome(outcome_block_);
  const StepArrays device = carve_step(step, sizes, model_.options.way);
  const OutcomeArrays out = carve_outcome(outcome, sizes);
  const auto copy = [&](void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_.get()),
               "copy of a step");
  };
  if (copies) copy(step_block_, block.step.pinned(), block.step_bytes, cudaMemcpyHostToDevice);
  PassCuda pass = pass_of(sizes, device.windows, page_table_);
  pass.state_rows = device.state_rows;
  const StateMethod way = model_.options.way;
  if (way == StateMethod::kPlain || way == StateMethod::kSnapshots) {
    pass.snapshot_slots = device.snapshot_slots;
  }
  pass.kept_set = kept_set;
  pass.parts = parts;
  forward_->run(*context_, pass, pools_);
  if ((parts & kRestPart) != 0) {
    const ops::ConstMatrix logits{forward_->logits(), DType::kF32, shape.tokens(),
                                  model_.spec().vocab, model_.spec().vocab};
    ops::cuda::argmax(*context_, logits, out.drawn);
    const WindowArrays& windows = device.windows;
    ops::cuda::verify(*context_, {windows.row_tokens, windows.first_token, shape.rows},
                      windows.tokens, out.drawn, out.n_accepted, out.next);
    cuda::force_accepted(shape.rows, device.stands, windows.first_token, out.drawn, out.n_accepted,
                         out.next, stream_.get());
  }
  if (way == StateMethod::kActivationReplay && (parts & kStatePart) != 0) {
    cuda::make_rebuild_rows(shape.rows, device.state_rows, out.n_accepted, out.rebuild,
                            stream_.get());
    forward_->rebuild(*context_, pass, out.rebuild, pools_);
  }
  if (copies) {
    // All but the rebuild rows, which come last.
    const int64_t bytes = reinterpret_cast<char*>(out.rebuild) - outcome_block_;
    copy(block.outcome.pinned(), outcome_block_, bytes, cudaMemcpyDeviceToHost);
  }
}

void DecodeCuda::prepare(StepShape shape) {
  Block& b = block(shape);
  run_eager(shape);  // products choose their algorithms in a first pass
  const int sets = std::max(1, kept_sets(model_.options.way));
  b.graphs.clear();
  for (int set = 0; set < sets; ++set) {
    b.graphs.push_back(Graph::capture(stream_, [&] {
      const auto* released = reinterpret_cast<const uint64_t*>(released_.data());
      cuda::wait_for_release(released, n_passed_, stream_.get());
      enqueue(b, shape, set, kAllParts, /*copies=*/true);
    }));
  }
}

void DecodeCuda::run_eager(StepShape shape) {
  Block& b = block(shape);
  b.step.send(b.step_bytes);
  enqueue(b, shape, 0, kAllParts, /*copies=*/true);
  stream_.wait();
}

std::vector<float> DecodeCuda::logits(StepShape shape) const {
  std::vector<float> out(static_cast<size_t>(shape.tokens() * model_.spec().vocab));
  check_cuda(cudaMemcpy(out.data(), forward_->logits(), out.size() * sizeof(float),
                        cudaMemcpyDeviceToHost),
             "copy of logits");
  return out;
}

void DecodeCuda::launch(StepShape shape, int32_t kept_set) {
  const std::vector<Graph>& graphs = block(shape).graphs;
  REPLAYSSM_CHECK(kept_set >= 0 && kept_set < std::ssize(graphs), "no graph of ", shape.rows,
                  " rows of ", shape.window);
  REPLAYSSM_CHECK(n_launched_ < n_waited_ + 2, "a third step at once");
  graphs[static_cast<size_t>(kept_set)].launch(stream_);
  ends_[n_launched_++ % 2].record(stream_);
}

void DecodeCuda::release(StepShape shape) {
  REPLAYSSM_CHECK(n_released_ < n_launched_ && n_released_ == n_waited_, n_launched_, " launched, ",
                  n_released_, " released, ", n_waited_, " waited for");
  Block& b = block(shape);
  b.step.send(b.step_bytes);
  let_run(n_released_ + 1);
}

StepOutcome DecodeCuda::wait(StepShape shape) {
  REPLAYSSM_CHECK(n_waited_ < n_released_, "no step runs");
  ends_[n_waited_++ % 2].wait();
  Block& b = block(shape);
  b.outcome.receive(b.outcome_bytes);
  const OutcomeArrays& out = b.outcomes;
  return {out.n_accepted, out.next, out.drawn};
}

double DecodeCuda::time_parts(StepShape shape, uint32_t parts, int repeats) {
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

}  // namespace replayssm::bench
