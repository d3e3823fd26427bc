// The persistent kernel, for launches of many rows: one block per SM, made of several consumer
// groups that share fewer state buffers.
//
// A block of the other kernels holds its state in shared memory while its inputs arrive and are
// prepared: half of its time. Here a consumer group does an item's work (what such a block would
// do), item after item. It acquires a state buffer when it starts, if one is free, and otherwise
// when its inputs are ready. It releases the buffer after the last product. The next item's batch
// row is fetched during the current item.
//
// Synchronisation: each group has a named barrier (sync()) and an mbarrier for its state copies. A
// buffer passes from group to group by a bit of ConsumersCommon::free; see release_state().
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

template <typename T, int kConsumers, int kStates>
struct alignas(128) PersistentShared {
  uint8_t states[kStates][T::kStateBytes];
  StepShared<T> consumers[kConsumers];
  ConsumersCommon common;
};

template <typename T>
__device__ StepBlock<T>::StepBlock(const StepParams& params, StepShared<T>& shared,
                                   ConsumersCommon& common, uint8_t* states, uint32_t turn,
                                   uint32_t phase)
    : p_(params),
      a_(params.args),
      s_(shared),
      consumer_{shared.consumer.items[turn & 1], &common, states, nullptr, -1, phase} {
  set_row(shared.consumer.rows[turn & 1]);
  // The other entry of rows and items: nothing reads it before the barrier in run_item().
  if (is_fetch_warp()) fetch_item(params, shared, common, turn + 1);
}

template <typename T>
__device__ void StepBlock<T>::fetch_item(const StepParams& params, StepShared<T>& shared,
                                         ConsumersCommon& common, uint32_t turn) {
  const int lane = threadIdx.x % 32;
  uint32_t index = 0;
  if (lane == 0) index = blockIdx.x + gridDim.x * atomicAdd(&common.next, 1u);
  index = __shfl_sync(kFull, index, 0);
  const uint32_t row = divided(index, params.row_items, params.row_reciprocal);
  const uint32_t in_row = index - row * params.row_items;
  const uint32_t key_head = divided(in_row, params.key_head_items, params.key_head_reciprocal);
  const bool valid = index < params.n_items;
  if (lane == 0) {
    shared.consumer.items[turn & 1] = {in_row - key_head * params.key_head_items, key_head, valid};
  }
  if (lane < kRowWords && valid) {
    copy_8(shared_address(&shared.consumer.rows[turn & 1][lane]),
           reinterpret_cast<const int64_t*>(params.args.rows + row) + lane);
  }
}

template <typename T>
__device__ bool StepBlock<T>::run_item() {
  const bool had_state = run() && c_ != 0;
  copies_wait();
  sync();  // publishes the next item; all warps are done with this item's shared memory
  return had_state;
}

template <typename T>
__device__ int StepBlock<T>::acquire_state() const {
  uint32_t* const free = &consumer_.common->free;
  const uint32_t now = atomicOr(free, 0u);
  if (now == 0) return -1;
  const int own = __ffs(static_cast<int>(now)) - 1;
  if ((atomicAnd(free, ~(1u << own)) >> own & 1) == 0) return -1;
  // Pairs with release_state(): the previous group's accesses come before this copy.
  __threadfence_block();
  async_fence();
  if (c_ != 0) copy_state(consumer_.states + own * T::kStateBytes);
  return own;
}

// Spins: another group of this block releases a buffer without waiting for this one.
template <typename T>
__device__ void StepBlock<T>::acquire_state_late() const {
  if (thread() != kFetchThread || consumer_.own >= 0 || s_.consumer.first_state >= 0) return;
  int own;
  do own = acquire_state();
  while (own < 0);
  s_.consumer.state = own;
}

// The buffer acquired late is announced by a group barrier: the one acquired at the start by the
// barrier in prepare().
template <typename T>
__device__ void StepBlock<T>::wait_consumer_state() {
  if (consumer_.own >= 0) return;
  if (s_.consumer.first_state < 0) sync();
  consumer_.own = s_.consumer.state;
  consumer_.state = consumer_.states + consumer_.own * T::kStateBytes;
  if (c_ == 0) {
    zero_state();
  } else {
    barrier_wait(&s_.barrier, consumer_.phase);
  }
}

// Called by each warp when it needs the buffer no more; the last one frees it. The fences order the
// warp's accesses before the next group's bulk copy into the buffer, which the async proxy does.
template <typename T>
__device__ void StepBlock<T>::release_state() {
  async_fence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    __threadfence_block();
    uint32_t* const done = &consumer_.common->done[consumer_.own];
    if (atomicAdd(done, 1u) == T::kWarps - 1) {
      atomicExch(done, 0u);
      __threadfence_block();
      atomicOr(&consumer_.common->free, 1u << consumer_.own);
    }
  }
  consumer_.own = -1;
}

template <typename T, int kConsumers, int kStates>
__global__ void __launch_bounds__(T::kThreads* kConsumers, 1)
    persistent_kernel(const __grid_constant__ StepParams params) {
  static_assert(kStates <= kMaxStates && kConsumers < 16);  // named barriers
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<PersistentShared<T, kConsumers, kStates>*>(memory);
  if (threadIdx.x < kConsumers) {
    barrier_init(&shared.consumers[threadIdx.x].barrier, 1);
    barrier_fence();
  }
  if (threadIdx.x == 0) shared.common = {0, (1u << kStates) - 1, {}};
  __syncthreads();
  StepShared<T>& own = shared.consumers[threadIdx.x / T::kThreads];
  if (StepBlock<T>::is_fetch_warp()) StepBlock<T>::fetch_item(params, own, shared.common, 0);
  copies_wait();
  __syncthreads();
  uint32_t phase = 0;
  for (uint32_t turn = 0; own.consumer.items[turn & 1].valid; ++turn) {
    phase ^= static_cast<uint32_t>(
        StepBlock<T>(params, own, shared.common, shared.states[0], turn, phase).run_item());
  }
}

}  // namespace replayssm::cuda
