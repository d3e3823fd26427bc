// The few PTX instructions of the kernels: tensor-core products, asynchronous copies, barriers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace replayssm::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Products of the tensor cores. Lane 4 g + c holds of
//   A [16 x 16]  a0: row g, k 2c and 2c+1; a1: row g+8; a2: row g, k 2c+8 and 2c+9; a3: row g+8
//   B [16 x 8]   b0: k 2c and 2c+1 of column g; b1: k 2c+8 and 2c+9
//   D [16 x 8]   d0, d1: row g, columns 2c and 2c+1; d2, d3: row g+8

// D = A B + C, fp16 operands, fp32 sums.
__device__ __forceinline__ void mma_f16(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1, const float c[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]),
        "f"(c[3]));
}
__device__ __forceinline__ void mma_f16(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
  mma_f16(d, a0, a1, a2, a3, b0, b1, d);
}

// D += A B.
__device__ __forceinline__ void mma_bf16(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// D = A B + C, [16 x 8] by [8 x 8] fp16: a0 and a1, b0 of the above.
__device__ __forceinline__ void unit_product(float d[4], uint32_t a0, uint32_t a1, uint32_t b0,
                                             const float c[4]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%8,%9,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(b0), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// D += A B, [16 x 8] by [8 x 8] fp32 of which the low 13 bits are ignored. a0: row g, k c; a1: row
// g+8; a2: row g, k c+4; a3: row g+8. b0: k c of column g; b1: k c+4.
__device__ __forceinline__ void mma_tf32(float d[4], float a0, float a1, float a2, float a3,
                                         float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)),
        "r"(__float_as_uint(a3)), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the 16-byte row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// The transpose of an 8 x 8 matrix of 16-bit elements; lane 4 g + c holds columns 2c and 2c+1 of
// row g.
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(count));
}
// Makes an initialised barrier visible to the copy engine.
__device__ __forceinline__ void barrier_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}

// Orders ordinary accesses to shared memory before those of the copy engine (async proxy).
__device__ __forceinline__ void async_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Barrier `barrier` (1..15) of some of a block's warps, `threads` threads in all.
__device__ __forceinline__ void named_barrier_sync(uint32_t barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// bytes: a multiple of 16; both addresses 16-byte aligned.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The two halves of a programmatic launch; without one they do nothing. A kernel that was launched
// so may start before the kernels ahead of it in the stream have ended.

// Returns when the kernels ahead are done and their writes are visible. Every block calls it before
// it touches memory that any kernel writes: then "the one ahead is done" means that all are.
__device__ __forceinline__ void wait_for_kernels_ahead() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Once every block has called it, the next kernel may start.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// The next kernel starts when those ahead of this one are done: what it reads before its own wait
// may have been written by any of them.
__device__ __forceinline__ void dependencies_wait() {
  wait_for_kernels_ahead();
  let_next_kernel_start();
}

// 16 bytes.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_8(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Not moved or split by the compiler.
__device__ __forceinline__ int64_t load_64(const int64_t* p) {
  int64_t x;
  asm volatile("ld.global.nc.b64 %0, [%1];" : "=l"(x) : "l"(p));
  return x;
}

// e^x to some 2^-22.
__device__ __forceinline__ float exp_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504088896340736f));
  return y;
}

// 1 / x to some 2^-22; x not subnormal.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t pack_half(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

__device__ __forceinline__ float2 unpack_half(uint32_t bits) {
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}
__device__ __forceinline__ float2 unpack_bf16(uint32_t bits) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

// As pack_half, but what is beyond fp16's range becomes its largest value; NaN stays NaN.
__device__ __forceinline__ uint32_t pack_half_finite(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ __forceinline__ __half2 as_half2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}
__device__ __forceinline__ uint32_t as_bits(__half2 x) {
  return *reinterpret_cast<const uint32_t*>(&x);
}
__device__ __forceinline__ __half2 largest_half2() {
  return __half2half2(__ushort_as_half(0x7bff));
}
// How many of the two have reached the largest value.
__device__ __forceinline__ int n_largest(uint32_t bits) {
  return static_cast<int>((bits & 0x7fffu) == 0x7bffu) +
         static_cast<int>((bits >> 16 & 0x7fffu) == 0x7bffu);
}
// The larger magnitudes, half by half; NaN is the largest.
__device__ __forceinline__ uint32_t larger(uint32_t x, uint32_t y) {
  const __half2 z = __hmax2_nan(__habs2(as_half2(x)), __habs2(as_half2(y)));
  return *reinterpret_cast<const uint32_t*>(&z);
}
// The same of numbers: NaN is not one.
__device__ __forceinline__ uint32_t larger_number(uint32_t x, uint32_t y) {
  return as_bits(__hmax2(__habs2(as_half2(x)), __habs2(as_half2(y))));
}
__device__ __forceinline__ uint32_t larger_bf16(uint32_t x, uint32_t y) {
  const __nv_bfloat162 z = __hmax2_nan(__habs2(*reinterpret_cast<const __nv_bfloat162*>(&x)),
                                       __habs2(*reinterpret_cast<const __nv_bfloat162*>(&y)));
  return *reinterpret_cast<const uint32_t*>(&z);
}

// True if a half is infinite or NaN: fp16, bf16.
__device__ __forceinline__ bool half_is_bad(uint32_t bits) {
  return (bits & 0x7c00u) == 0x7c00u || (bits & 0x7c000000u) == 0x7c000000u;
}
__device__ __forceinline__ bool bf16_is_bad(uint32_t bits) {
  return (bits & 0x7f80u) == 0x7f80u || (bits & 0x7f800000u) == 0x7f800000u;
}
// NaN if one is.
__device__ __forceinline__ float min_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// The halves of x and y: low halves, high halves.
__device__ __forceinline__ uint32_t low_halves(uint32_t x, uint32_t y) {
  return __byte_perm(x, y, 0x5410);
}
__device__ __forceinline__ uint32_t high_halves(uint32_t x, uint32_t y) {
  return __byte_perm(x, y, 0x7632);
}

}  // namespace replayssm::cuda
