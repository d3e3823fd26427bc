// Of StepBlock: teams, for launches of many rows.
//
// While a part's inputs come and are prepared its state would lie in shared memory unused, half of
// the time that a part takes. So a block is some teams of warps that share states, fewer than they
// are where that lets more teams in: a team takes one when it starts, if one is free, else when its
// inputs are ready, and gives it back after the last product. One block a multiprocessor; its teams
// take parts one after another, and a part's row is fetched while the team works on the one before.
#pragma once

#include "replay/cuda/step_block.cuh"

namespace replayssm::cuda {

template <typename T, int kTeams, int kStates>
struct alignas(128) TeamsShared {
  uint8_t states[kStates][T::kStateBytes];
  StepShared<T> teams[kTeams];
  TeamsCommon common;
};

template <typename T>
__device__ StepBlock<T>::StepBlock(const StepParams& params, StepShared<T>& shared,
                                   TeamsCommon& common, uint8_t* states, uint32_t turn,
                                   uint32_t phase)
    : p_(params),
      a_(params.args),
      s_(shared),
      team_{shared.team.parts[turn & 1], &common, states, nullptr, -1, phase} {
  set_row(shared.team.rows[turn & 1]);
  if (is_takers_warp()) take_part(params, shared, common, turn + 1);
}

template <typename T>
__device__ void StepBlock<T>::take_part(const StepParams& params, StepShared<T>& shared,
                                        TeamsCommon& common, uint32_t turn) {
  const int lane = threadIdx.x % 32;
  uint32_t index = 0;
  if (lane == 0) index = blockIdx.x + gridDim.x * atomicAdd(&common.next, 1u);
  index = __shfl_sync(kFull, index, 0);
  const uint32_t row = divided(index, params.row_parts, params.row_reciprocal);
  const uint32_t in_row = index - row * params.row_parts;
  const uint32_t key_head = divided(in_row, params.key_head_parts, params.key_head_reciprocal);
  const bool valid = index < params.n_parts;
  if (lane == 0) {
    shared.team.parts[turn & 1] = {in_row - key_head * params.key_head_parts, key_head, valid};
  }
  if (lane < kRowWords && valid) {
    copy_8(shared_address(&shared.team.rows[turn & 1][lane]),
           reinterpret_cast<const int64_t*>(params.args.rows + row) + lane);
  }
}

template <typename T>
__device__ bool StepBlock<T>::run_part() {
  const bool had_state = run() && c_ != 0;
  copies_wait();
  sync();  // before the next part's copies
  return had_state;
}

template <typename T>
__device__ int StepBlock<T>::take_state() const {
  uint32_t* const free = &team_.common->free;
  const uint32_t now = atomicOr(free, 0u);
  if (now == 0) return -1;
  const int own = __ffs(static_cast<int>(now)) - 1;
  if ((atomicAnd(free, ~(1u << own)) >> own & 1) == 0) return -1;
  __threadfence_block();
  async_fence();
  if (c_ != 0) copy_state(team_.states + own * T::kStateBytes);
  return own;
}

template <typename T>
__device__ void StepBlock<T>::take_state_at_last() const {
  if (thread() != kTaker || team_.own >= 0 || s_.team.first_state >= 0) return;
  int own;
  do own = take_state();
  while (own < 0);
  s_.team.state = own;
}

template <typename T>
__device__ void StepBlock<T>::wait_team_state() {
  if (team_.own >= 0) return;
  if (s_.team.first_state < 0) sync();
  team_.own = s_.team.state;
  team_.state = team_.states + team_.own * T::kStateBytes;
  if (c_ == 0) {
    zero_state();
  } else {
    barrier_wait(&s_.barrier, team_.phase);
  }
}

template <typename T>
__device__ void StepBlock<T>::give_state() {
  async_fence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    __threadfence_block();
    uint32_t* const done = &team_.common->done[team_.own];
    if (atomicAdd(done, 1u) == T::kWarps - 1) {
      atomicExch(done, 0u);
      __threadfence_block();
      atomicOr(&team_.common->free, 1u << team_.own);
    }
  }
  team_.own = -1;
}

template <typename T, int kTeams, int kStates>
__global__ void __launch_bounds__(T::kThreads* kTeams, 1)
    teams_kernel(const __grid_constant__ StepParams params) {
  static_assert(kStates <= kMaxStates && kTeams < 16);  // named barriers
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<TeamsShared<T, kTeams, kStates>*>(memory);
  if (threadIdx.x < kTeams) {
    barrier_init(&shared.teams[threadIdx.x].barrier, 1);
    barrier_fence();
  }
  if (threadIdx.x == 0) shared.common = {0, (1u << kStates) - 1, {}};
  __syncthreads();
  StepShared<T>& own = shared.teams[threadIdx.x / T::kThreads];
  if (StepBlock<T>::is_takers_warp()) StepBlock<T>::take_part(params, own, shared.common, 0);
  copies_wait();
  __syncthreads();
  uint32_t phase = 0;
  for (uint32_t turn = 0; own.team.parts[turn & 1].valid; ++turn) {
    phase ^= static_cast<uint32_t>(
        StepBlock<T>(params, own, shared.common, shared.states[0], turn, phase).run_part());
  }
}

}  // namespace replayssm::cuda
