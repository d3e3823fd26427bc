#include "bench/ops/onednn.h"

#include <cstdio>
#include <exception>
#include <oneapi/dnnl/dnnl.hpp>

#include "core/memory.h"

namespace replayssm::bench {
namespace {

class Matmul final : public OneDnnMatmul {
 public:
  Matmul(bool bf16, int64_t rows, int64_t n_in, int64_t n_out, const void* x, const void* weight,
         float* y)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Memory = dnnl::memory;
    const auto type = bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    const Memory::desc x_desc({rows, n_in}, type, Memory::format_tag::ab);
    const Memory::desc any({n_in, n_out}, type, Memory::format_tag::any);
    const Memory::desc plain({n_in, n_out}, type, Memory::format_tag::ba);
    const Memory::desc y_desc({rows, n_out}, Memory::data_type::f32, Memory::format_tag::ab);
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(x_desc, any, y_desc), engine_);
    matmul_ = dnnl::matmul(plan);
    packed_ = Buffer(plan.weights_desc().get_size());
    Memory source(plain, engine_, const_cast<void*>(weight));
    weight_ = Memory(plan.weights_desc(), engine_, packed_.data());
    dnnl::reorder(source, weight_).execute(stream_, source, weight_);
    stream_.wait();
    x_ = Memory(x_desc, engine_, const_cast<void*>(x));
    y_ = Memory(y_desc, engine_, y);
  }

  void run() override {
    matmul_.execute(stream_, {{DNNL_ARG_SRC, x_}, {DNNL_ARG_WEIGHTS, weight_}, {DNNL_ARG_DST, y_}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  Buffer packed_;
  dnnl::memory weight_;
  dnnl::memory x_;
  dnnl::memory y_;
};

}  // namespace

std::unique_ptr<OneDnnMatmul> onednn_matmul(bool bf16, int64_t rows, int64_t n_in, int64_t n_out,
                                            const void* x, const void* weight, float* y) {
  try {
    return std::make_unique<Matmul>(bf16, rows, n_in, n_out, x, weight, y);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oneDNN: %s\n", error.what());
    return nullptr;
  }
}

const char* onednn_version() {
  static char text[32];
  const dnnl_version_t* v = dnnl_version();
  std::snprintf(text, sizeof(text), "%d.%d.%d", v->major, v->minor, v->patch);
  return text;
}

}  // namespace replayssm::bench
