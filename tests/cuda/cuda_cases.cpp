#include "cuda_cases.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "replay/cuda/kernels_cuda.h"
#include "replay/cuda/step_instances.h"

namespace replayssm::test {
namespace {

constexpr Family kM = Family::kMamba2, kG = Family::kGdn, kK = Family::kKda;
constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBf = DType::kBF16, kI8 = DType::kI8;

// The kernels' ring: GDN's and KDA's u and k need fp16, Mamba-2's rows stay as they came.
DType ring_of(Family family, DType activation) { return family == kM ? activation : kF16; }

Problem cuda_problem(Family family, int n_heads, int n_key_heads, int value_dim, int key_dim,
                     int interval, int max_window, DType checkpoint, DType activation = kBf) {
  return with_dtypes(
      problem_of(family, n_heads, n_key_heads, value_dim, key_dim, interval, max_window),
      activation, ring_of(family, activation), checkpoint);
}

std::vector<Case> cases_of(const std::vector<Problem>& problems) {
  std::vector<Case> cases;
  for (const Problem& p : problems) cases.push_back(case_of(p));
  return cases;
}

// Whether a step of the problem may take the entry.
bool takes(const Problem& p, const cuda::StepInstance& x) {
  const auto [single, any] = cuda::kernels_of(p);
  const auto& kernels = x.single ? single : any;
  return any.standard != nullptr && (kernels.standard == &x || kernels.small_grid == &x);
}

// The problem with the fewest heads per key head that uses the entry, and has so many state rows
// per key head at least.
Problem problem_of_entry(const cuda::StepInstance& x, int window, int key_head_rows) {
  for (int ratio = 1; ratio <= (x.family == kK ? 1 : 16); ++ratio) {
    const Problem p = cuda_problem(x.family, 2 * ratio, 2, x.value_dim, x.key_dim, x.interval,
                                   window, x.checkpoint);
    if (ratio * x.value_dim < key_head_rows || !takes(p, x)) continue;
    return x.family == kK && window == 16 ? bounded_gate(p) : p;
  }
  throw std::logic_error(std::string("no problem takes the entry of ") + family_name(x.family) +
                         " " + std::to_string(x.value_dim) + "x" + std::to_string(x.key_dim) +
                         " B" + std::to_string(x.interval) + " " + dtype_name(x.checkpoint) + ", " +
                         std::to_string(x.rows) + " rows" + (x.single ? ", single" : "") +
                         (x.small_grid ? ", small grid" : ""));
}

}  // namespace

Problem cuda_fit(Problem p) {
  if (p.family == kM) p.n_heads = (p.n_heads / p.n_key_heads + 1) / 2 * 2 * p.n_key_heads;
  p.value_dim = p.family == kM ? 64 : 128;
  p.key_dim = 128;
  p.max_window = std::min(p.max_window, 16);
  p.grid = {16, Grid::rows_for(16, p.max_window)};
  p.activation = kBf;
  p.ring = ring_of(p.family, kBf);
  return p;
}

ConvProblem cuda_fit(ConvProblem p) {
  p.n_channels = (p.n_channels + 7) / 8 * 8;
  return p;
}

// Geometries of Qwen3.5, Nemotron-3, OLMo-Hybrid and Kimi-Linear, head ratios from 1 to 12, windows
// of every kernel's size; then the wider list of shapes that the kernels may learn.
std::vector<Case> cuda_shapes() {
  return cases_of({
      // family, heads, key heads or groups, V or P, K or N, B, T_max
      cuda_problem(kM, 8, 2, 64, 128, 16, 8, kF16),
      cuda_problem(kM, 4, 1, 64, 128, 16, 4, kF32),
      cuda_problem(kM, 16, 8, 64, 128, 16, 1, kI8),
      cuda_problem(kM, 24, 2, 80, 128, 16, 16, kF32),
      cuda_problem(kM, 12, 1, 80, 128, 16, 5, kF16),
      cuda_problem(kM, 4, 2, 80, 128, 16, 3, kI8),
      cuda_problem(kG, 8, 4, 128, 128, 16, 8, kF16),
      cuda_problem(kG, 4, 4, 128, 128, 16, 5, kF32),
      cuda_problem(kG, 6, 2, 128, 128, 16, 16, kI8),
      cuda_problem(kG, 8, 2, 128, 128, 16, 3, kF16),
      cuda_problem(kG, 2, 1, 128, 128, 16, 16, kF32),
      cuda_problem(kK, 4, 4, 128, 128, 16, 8, kF16),
      bounded_gate(cuda_problem(kK, 3, 3, 128, 128, 16, 4, kF32)),
      bounded_gate(cuda_problem(kK, 2, 2, 128, 128, 16, 16, kI8)),
      cuda_problem(kM, 4, 2, 64, 128, 32, 8, kI8),
      cuda_problem(kG, 4, 2, 128, 128, 32, 8, kF32),
      bounded_gate(cuda_problem(kK, 2, 2, 128, 128, 32, 8, kF16)),
      cuda_problem(kM, 4, 1, 64, 128, 32, 5, kF16),
      cuda_problem(kG, 4, 2, 128, 128, 32, 32, kF16),
      cuda_problem(kG, 2, 2, 128, 128, 32, 16, kI8),
      cuda_problem(kM, 8, 2, 32, 128, 16, 4, kF16),
      cuda_problem(kM, 6, 1, 32, 64, 16, 8, kF32),
      cuda_problem(kM, 4, 1, 128, 128, 16, 4, kF16),
      cuda_problem(kM, 2, 2, 128, 256, 16, 8, kF32),
      cuda_problem(kM, 3, 1, 128, 256, 16, 5, kF16),
      cuda_problem(kM, 8, 2, 64, 64, 16, 4, kF16),
      cuda_problem(kM, 4, 1, 64, 256, 16, 4, kF16),
      cuda_problem(kM, 3, 1, 64, 256, 16, 16, kF32),
      cuda_problem(kM, 4, 2, 80, 128, 16, 8, kBf),
      cuda_problem(kG, 4, 2, 192, 96, 16, 4, kF16),
      cuda_problem(kG, 3, 3, 192, 96, 16, 8, kF32),
      cuda_problem(kG, 2, 1, 192, 96, 16, 5, kI8),
      cuda_problem(kM, 12, 1, 80, 128, 16, 4, kF32, kF32),
      cuda_problem(kG, 4, 2, 64, 64, 32, 9, kF32, kF32),
      bounded_gate(cuda_problem(kK, 2, 2, 128, 128, 8, 8, kF32, kF32)),
  });
}

std::vector<Case> cuda_dtypes() {
  std::vector<Problem> problems;
  bool twice = false;
  for (DType activation : {kBf, kF32}) {
    for (DType checkpoint : {kF32, kF16, kBf, kI8}) {
      if (activation == kF32 && checkpoint != kF32) continue;
      for (Problem p :
           {cuda_problem(kM, 4, 2, 64, 128, 16, 5, checkpoint, activation),
            cuda_problem(kG, 4, 2, 128, 128, 16, 5, checkpoint, activation),
            cuda_problem(kK, 2, 2, 128, 128, 16, 5, checkpoint, activation),
            bounded_gate(cuda_problem(kK, 2, 2, 128, 128, 16, 5, checkpoint, activation))}) {
        twice = !twice;
        if (twice && p.family != kM) p.beta_scale = 2.0f;
        problems.push_back(p);
      }
    }
  }
  return cases_of(problems);
}

std::vector<Case> cuda_core() {
  return cases_of({
      cuda_problem(kM, 4, 2, 64, 128, 16, 8, kI8),
      cuda_problem(kM, 12, 1, 80, 128, 16, 5, kF16),
      cuda_problem(kG, 2, 1, 128, 128, 16, 8, kF32),
      cuda_problem(kG, 4, 2, 128, 128, 16, 16, kF16),
      cuda_problem(kG, 3, 3, 128, 128, 16, 3, kI8),
      cuda_problem(kK, 2, 2, 128, 128, 16, 8, kF16),
      bounded_gate(cuda_problem(kK, 2, 2, 128, 128, 16, 4, kF32)),
      cuda_problem(kM, 4, 2, 64, 128, 32, 8, kI8),
      cuda_problem(kG, 2, 1, 128, 128, 32, 5, kF16),
      cuda_problem(kK, 2, 2, 128, 128, 32, 16, kF16),
      cuda_problem(kM, 4, 2, 64, 128, 16, 8, kF32, kF32),
      cuda_problem(kG, 4, 2, 128, 128, 16, 5, kF32, kF32),
      cuda_problem(kK, 2, 2, 128, 128, 16, 4, kF32, kF32),
  });
}

std::vector<Case> cuda_entries(bool persistent) {
  std::vector<Problem> problems;
  for (const cuda::StepInstance* x : cuda::all_instances()) {
    if (persistent && x->persistent == nullptr) continue;
    // Windows of 16 are computed in two sub-windows, and may fold and cross a grid point at once.
    const int window = x->single ? 1 : persistent || problems.size() % 2 != 0 ? 16 : 8;
    problems.push_back(problem_of_entry(*x, window, persistent ? 2 * x->rows : 0));
  }
  return unique({cases_of(problems)});
}

std::vector<Case> with_plan(const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const Case& c : cases) {
    if (plan_cuda(c.problem).plan != nullptr) out.push_back(c);
  }
  return out;
}

std::vector<Case> unique(std::initializer_list<std::vector<Case>> lists) {
  std::vector<Case> out;
  for (const auto& list : lists) {
    for (const Case& c : list) {
      const auto same = [&](const Case& other) { return other.name == c.name; };
      if (std::none_of(out.begin(), out.end(), same)) out.push_back(c);
    }
  }
  return out;
}

std::string test_name(const testing::TestParamInfo<Case>& info) {
  std::string out;
  for (char c : info.param.name) {
    out += std::isalnum(static_cast<unsigned char>(c)) ? c : c == '*' ? 'x' : c == '+' ? 'p' : '_';
  }
  return out;
}

}  // namespace replayssm::test
