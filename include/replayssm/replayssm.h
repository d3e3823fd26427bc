/* replayssm: exact, fast inference of recurrent layers by replay on the grid. The C interface.
 *
 * A recurrent layer (Mamba-2, GDN, KDA) keeps, for each sequence, a checkpoint of its state at a
 * multiple of the grid interval B and a ring of the recent tokens' inputs. Outputs and checkpoints
 * are pure functions of the tokens, to the bit, however they are cut into windows, drafted,
 * rejected, batched or resumed, within one build, device and instruction set (docs/contract.md).
 *
 * One interface for two backends. RSSM_CPU: every pointer is host memory, a call returns when it is
 * done, `stream` is ignored. RSSM_CUDA: every pointer inside an argument struct is device memory, a
 * call only enqueues on `stream` (a cudaStream_t; null is the default stream), neither allocates
 * nor synchronises, and may be captured in a graph. The argument structs themselves are host memory
 * and are copied.
 *
 * Structs begin with their size, which the caller sets to sizeof: a struct of another size is
 * refused. Strides are int64_t and count elements. Fields of no use to a family are ignored.
 *
 * Every call that can fail returns a status and, unless it is RSSM_OK, leaves a line in
 * rssm_last_error() that names the field. What is refused has changed nothing. Host memory is
 * checked before it is used; the contents of device memory cannot be. Plans may be shared by
 * threads; two calls at once must not share a workspace or write the same slots.
 */
#ifndef REPLAYSSM_REPLAYSSM_H
#define REPLAYSSM_REPLAYSSM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RSSM_API __attribute__((visibility("default")))
#else
#define RSSM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_VERSION 1 /* of this interface */

/* The interface's version that the library was built with. */
RSSM_API int32_t rssm_version(void);

typedef enum rssm_status {
  RSSM_OK = 0,
  RSSM_BAD_SIZE = 1,     /* a struct's size, or row_bytes, is not this version's */
  RSSM_NULL = 2,         /* a pointer that is needed is null */
  RSSM_OUT_OF_RANGE = 3, /* a number is outside its range */
  RSSM_MISALIGNED = 4,   /* a pointer or stride breaks the backend's alignment */
  RSSM_UNSUPPORTED = 5,  /* this backend has no such thing; rssm_last_error() says why */
  RSSM_NO_MEMORY = 6,    /* the host is out of memory */
  RSSM_DEVICE_ERROR = 7  /* CUDA reported an error */
} rssm_status;

/* One line for a status; "unknown status" for any other number. Never null. */
RSSM_API const char* rssm_status_text(int32_t status);

/* What the calling thread's last failed call refused, and why. Valid until its next failed call.
 * Never null. */
RSSM_API const char* rssm_last_error(void);

/* ------------------------------------------------------------------------------------------------
 * Plans of a recurrent layer
 *
 * S is the state of one head, [value_dim, key_dim]; all sums accumulate in fp32.
 *
 *   Mamba-2  S_t = exp(A dt_t) S_{t-1} + dt_t x_t B_t^T       y_t = S_t C_t + D x_t
 *            dt = softplus(gate + dt_bias) (identity above 20), A = -exp(a_log)
 *   GDN      u_t = beta_t (v_t - alpha_t S_{t-1} k_t)         S_t = alpha_t S_{t-1} + u_t k_t^T
 *            y_t = S_t q_t;  q, k L2-normalised (1e-6 under the root), q times key_dim^-1/2
 *            alpha = exp(-exp(a_log) softplus(gate + dt_bias)), beta = beta_scale * sigmoid(beta)
 *   KDA      as GDN with a decay per key channel: S_{t-1} diag(alpha_t), alpha_t in R^key_dim
 *
 * Sources: Mamba-2, Dao and Gu 2024; Gated DeltaNet, Yang et al. 2024; Kimi Delta Attention, Kimi
 * Team 2025; replay, ReplaySSM 2026. Gates come raw: norms, softplus, exponentials and sigmoids are
 * done inside. */

enum { RSSM_CPU = 0, RSSM_CUDA = 1 };
enum { RSSM_MAMBA2 = 0, RSSM_GDN = 1, RSSM_KDA = 2 };

/* int8 is a checkpoint type only: one fp32 scale for each state row, max |row| / 127. */
enum { RSSM_F32 = 0, RSSM_F16 = 1, RSSM_BF16 = 2, RSSM_I8 = 3 };

/* KDA's log decay: RSSM_GATE_SOFTPLUS  -exp(a_log) softplus(gate + dt_bias)
 *                  RSSM_GATE_BOUNDED   decay_lower_bound * sigmoid(exp(a_log) (gate + dt_bias)) */
enum { RSSM_GATE_SOFTPLUS = 0, RSSM_GATE_BOUNDED = 1 };

typedef struct rssm_problem {
  size_t size;
  int32_t backend;         /* RSSM_CPU, RSSM_CUDA */
  int32_t family;          /* RSSM_MAMBA2, RSSM_GDN, RSSM_KDA */
  int32_t n_heads;         /* value heads; Mamba-2: heads */
  int32_t n_key_heads;     /* GDN: key heads, Mamba-2: groups, KDA: n_heads. Divides n_heads; head h
                              uses key head h / (n_heads / n_key_heads) */
  int32_t value_dim;       /* V or P: rows of S, 1..1024 */
  int32_t key_dim;         /* K or N: columns of S, 1..1024 */
  int32_t interval;        /* B, tokens between checkpoints: 8, 16, 32 or 64 */
  int32_t ring_rows;       /* R, tokens that a ring holds: at least B + 2 max_window - 1 */
  int32_t max_window;      /* the most positions past n that a step may touch, 1..B */
  int32_t activation;      /* q, k, v and y: RSSM_F32 or RSSM_BF16 */
  int32_t ring;            /* ring values and keys: RSSM_F32, RSSM_F16 (saturates), RSSM_BF16 */
  int32_t checkpoint;      /* RSSM_F32, RSSM_F16 (saturates), RSSM_BF16, RSSM_I8 */
  float beta_scale;        /* GDN and KDA; usually 1 */
  int32_t decay_gate;      /* KDA: RSSM_GATE_SOFTPLUS, RSSM_GATE_BOUNDED */
  float decay_lower_bound; /* KDA with RSSM_GATE_BOUNDED: below 0 */
} rssm_problem;

typedef struct rssm_plan rssm_plan;

/* Decides once whether and how a problem runs. RSSM_UNSUPPORTED: rssm_last_error() gives the reason
 * (a shape without a CUDA kernel, a library without the CUDA backend, a machine without a device).
 * *plan is null unless RSSM_OK. */
RSSM_API rssm_status rssm_plan_create(const rssm_problem* problem, rssm_plan** plan);
/* Null is allowed. CUDA: what was enqueued with the plan may still be running. */
RSSM_API void rssm_plan_destroy(rssm_plan* plan);

typedef struct rssm_sizes {
  size_t size;
  int64_t checkpoint_elements; /* of one slot, in the checkpoint's dtype */
  int64_t scale_elements;      /* of one slot, fp32; 0 unless the checkpoint is int8 */
  int64_t canonical_elements;  /* n_heads * value_dim * key_dim: an exported checkpoint, fp32 */
  int64_t ring_value_elements; /* of one ring row, ring dtype: n_heads * value_dim */
  int64_t ring_key_elements;   /* of one ring row, ring dtype: n_key_heads * key_dim */
  int64_t ring_gate_elements;  /* of one ring row, fp32: n_heads; KDA: n_heads * key_dim */
  /* Of query, key, value, out, checkpoint, ring_value, ring_key, and KDA's gate and ring_gate:
   * strides are multiples of stride_multiple elements and of alignment_bytes, pointers of
   * alignment_bytes. CPU: 1 and 1, CUDA: 8 and 16. All other pointers are aligned to their element.
   */
  int64_t stride_multiple;
  int64_t alignment_bytes;
} rssm_sizes;

/* A ring slot holds ring_rows rows of each kind. sizes->size is set by the caller. */
RSSM_API rssm_status rssm_plan_sizes(const rssm_plan* plan, rssm_sizes* sizes);
/* What a step, sweep or fold needs as workspace with so many workers (at least 1); 0 for CUDA and
 * for a null plan. */
RSSM_API size_t rssm_workspace_bytes(const rssm_plan* plan, int32_t n_workers);

/* ------------------------------------------------------------------------------------------------
 * Rows, and the two numbers of a sequence */

/* A sequence is n committed tokens and the position c of its stored checkpoint: g(n) = B floor(n /
 * B), or g(n) - B until the next step folds. c = 0 is the zero state: no slot is read. A new
 * sequence has n = c = 0 and needs no cleared slot. */
typedef struct rssm_sequence {
  int64_t n;
  int64_t c;
  int32_t checkpoint_slot; /* where the checkpoint at c lives */
  int32_t ring_slot;       /* of the layer's ring and of the conv's */
} rssm_sequence;

/* One row of a batch: the window [start, start + n_tokens) of one sequence. */
typedef struct rssm_row {
  int64_t n;          /* committed tokens, >= 0; CUDA: all positions stay below 2^31 */
  int64_t c;          /* position of the checkpoint in read_slot */
  int64_t start;      /* >= n; rows [n, start) are pending: fed by earlier steps, not committed */
  int32_t n_tokens;   /* start + n_tokens - n <= max_window; a sweep: any number; 0 only folds */
  int32_t reserved0;  /* ignored */
  int64_t token;      /* index of the window's first token in the packed activations */
  int32_t read_slot;  /* -1: the row is skipped, nothing of it is read or written */
  int32_t write_slot; /* takes a fold; may equal read_slot; no other row of the batch may read or
                         write it. Ignored where nothing is written */
  int32_t ring_slot;  /* no other row of the batch may have it */
  int32_t reserved1;  /* ignored */
} rssm_row;

/* Packed activations: token i's vector of head h begins at data + i * token_stride + h * dim. */
typedef struct rssm_tokens {
  const void* data;
  int64_t token_stride;
} rssm_tokens;

typedef struct rssm_mutable_tokens {
  void* data;
  int64_t token_stride;
} rssm_mutable_tokens;

/* Ring rows: token t's of slot s begins at data + s * slot_stride + (t mod ring_rows) * row_stride.
 * CUDA: the rows of a slot span less than 4 GiB; slots may lie as far apart as they like. */
typedef struct rssm_ring {
  void* data;
  int64_t slot_stride;
  int64_t row_stride;
} rssm_ring;

/* The caller's threads (CPU): run(ctx, count, function, arg) calls function(arg, index, worker)
 * once for every index in [0, count), each worker in [0, n_workers) on one thread at a time, and
 * returns when all have returned. Bits do not depend on it. */
typedef struct rssm_parallel_for {
  size_t size;
  void (*run)(void* ctx, int64_t count,
              void (*function)(const void* arg, int64_t index, int worker), const void* arg);
  void* ctx;
  int32_t n_workers; /* >= 1 */
} rssm_parallel_for;

/* ------------------------------------------------------------------------------------------------
 * Step, sweep, fold */

/* What the caller knows about a step's rows. Hints change speed only, and only on CUDA.
 *
 *   RSSM_HINT_SINGLE  every window starts at n and has at most one token: a smaller kernel is used
 *   RSSM_HINT_EARLY   the kernel before this step in the stream writes no row, checkpoint, ring
 *                     row, a_log, dt_bias or skip that the step reads: they are fetched while it
 *                     still runs
 */
enum { RSSM_HINT_SINGLE = 1, RSSM_HINT_EARLY = 2 };

typedef struct rssm_step_args {
  size_t size;
  const rssm_row* rows; /* [n_rows] */
  size_t row_bytes;     /* sizeof(rssm_row) */
  int32_t n_rows;       /* >= 0; 0 does nothing */
  int32_t n_slots;      /* checkpoint slots of the pool: read_slot and write_slot are below it */
  int32_t n_ring_slots; /* ring slots of the pool */
  int32_t hints;        /* of a step: some of RSSM_HINT_*, or 0 */
  int64_t n_tokens;     /* tokens of the packed activations; 0: their pointers may be null */

  /* Activation dtype. `out` may not overlap the inputs; else nothing here may overlap what is
   * written: out, checkpoint, scale and rings. */
  rssm_tokens query; /* GDN, KDA: q [n_key_heads, key_dim]; Mamba-2: C */
  rssm_tokens key;   /* GDN, KDA: k [n_key_heads, key_dim]; Mamba-2: B */
  rssm_tokens value; /* GDN, KDA: v [n_heads, value_dim];   Mamba-2: x */
  /* fp32, raw: Mamba-2 dt [n_heads]; GDN a [n_heads]; KDA g [n_heads, key_dim]. */
  rssm_tokens gate;
  rssm_tokens beta;        /* fp32, GDN, KDA: b [n_heads], before the sigmoid */
  rssm_mutable_tokens out; /* y [n_heads, value_dim] */
  const float* a_log;      /* [n_heads] */
  const float* dt_bias;    /* [n_heads]; KDA: [n_heads, key_dim] */
  const float* skip;       /* Mamba-2: D [n_heads] */

  /* Checkpoints in a private layout: slot s at checkpoint + s * checkpoint_slot_stride elements. */
  void* checkpoint;
  int64_t checkpoint_slot_stride;
  float* scale; /* int8 only: slot s at scale + s * scale_slot_stride */
  int64_t scale_slot_stride;

  rssm_ring ring_value; /* ring dtype, [n_heads, value_dim] per row: GDN, KDA u; Mamba-2 x */
  rssm_ring ring_key;   /* ring dtype, [n_key_heads, key_dim] per row: k; Mamba-2 B */
  rssm_ring ring_gate;  /* fp32: Mamba-2 dt [n_heads]; GDN log alpha [n_heads]; KDA log alpha
                           [n_heads, key_dim] */

  /* May be null. += the values that fp16 could not hold (saturated to +-65504): ring values as they
   * are computed, checkpoint values when their fold is written. */
  int64_t* n_saturated;

  /* CPU only. */
  void* workspace;                   /* rssm_workspace_bytes(plan, n_workers), 64-byte aligned */
  size_t workspace_bytes;            /* what `workspace` holds */
  const rssm_parallel_for* parallel; /* null: the calling thread does all, as one worker */
} rssm_step_args;

/* Windows of at most max_window positions past n: folds where c lags g(n) (to write_slot), computes
 * y of the window, writes its ring rows, commits nothing (see rssm_commit_row). */
RSSM_API rssm_status rssm_step(const rssm_plan* plan, const rssm_step_args* args, void* stream);

/* Prefill: any number of tokens from start == n; the same bits as steps over the same tokens.
 * Leaves the checkpoint of the last grid point in write_slot (see rssm_commit_sweep_row). */
RSSM_API rssm_status rssm_sweep(const rssm_plan* plan, const rssm_step_args* args, void* stream);

/* A step whose rows all have n_tokens == 0: writes the checkpoints that are pending (to finish,
 * store or move a sequence). n_tokens, the activations and out are ignored. CUDA does not check the
 * rows. */
RSSM_API rssm_status rssm_fold(const rssm_plan* plan, const rssm_step_args* args, void* stream);

/* ------------------------------------------------------------------------------------------------
 * Commit: moves n, and c and the slot where a step folded. Rollback is not moving n. */

/* After a step over `row`: commits `advance` tokens, pending ones included, from 0 (a dropped step;
 * its fold is kept) to start + n_tokens - n. RSSM_OUT_OF_RANGE, and nothing changes: another
 * advance, or a row made before the sequence last moved. Host memory whatever the backend. */
RSSM_API rssm_status rssm_commit_row(const rssm_plan* plan, const rssm_row* row, int64_t advance,
                                     rssm_sequence* sequence);
/* After a sweep over `row`: commits every token. */
RSSM_API rssm_status rssm_commit_sweep_row(const rssm_plan* plan, const rssm_row* row,
                                           rssm_sequence* sequence);

/* The same for a batch, in the backend's memory (CUDA: one kernel on the stream). */
typedef struct rssm_commit_args {
  size_t size;
  const rssm_row* rows; /* [n_rows]; a skipped row moves nothing */
  size_t row_bytes;     /* sizeof(rssm_row) */
  int32_t n_rows;
  int32_t is_sweep;         /* nonzero: the rows were swept, and `advance` is ignored */
  const int32_t* advance;   /* [n_rows] */
  rssm_sequence* sequences; /* [n_rows]: row i's sequence */
  int64_t* n_refused;       /* += rows that were out of range and moved nothing. Not null. */
} rssm_commit_args;

RSSM_API rssm_status rssm_commit(const rssm_plan* plan, const rssm_commit_args* args, void* stream);

/* ------------------------------------------------------------------------------------------------
 * A slot's checkpoint to and from fp32 [n_heads, value_dim, key_dim], row-major
 *
 * `slot` and `scale` point at one slot (checkpoint + s * checkpoint_slot_stride; scale is null
 * unless int8). import rounds to the checkpoint's dtype; what was exported from that dtype imports
 * exactly, by any plan of the same shape. No overlap. */
RSSM_API rssm_status rssm_export_checkpoint(const rssm_plan* plan, const void* slot,
                                            const float* scale, float* canonical, void* stream);
RSSM_API rssm_status rssm_import_checkpoint(const rssm_plan* plan, const float* canonical,
                                            void* slot, float* scale, void* stream);

/* ------------------------------------------------------------------------------------------------
 * The short causal depthwise convolution in front of a recurrent layer
 *
 *   y_t[ch] = SiLU(bias[ch] + sum_{i=0}^{w-1} weight[i, ch] x_{t-w+1+i}[ch]),   x before 0 is 0
 *
 * It keeps a ring of raw inputs by absolute position, so it follows its layer's n. A ring slot
 * holds ring_rows rows of n_channels. */
typedef struct rssm_conv_problem {
  size_t size;
  int32_t backend;
  int32_t n_channels; /* >= 1; CUDA: a multiple of 8 */
  int32_t width;      /* w, 2..8 */
  int32_t ring_rows;  /* >= w - 1 + the most positions past n that a step touches, and >= w */
  int32_t activation; /* x, y and the ring: RSSM_F32 or RSSM_BF16 */
} rssm_conv_problem;

typedef struct rssm_conv_plan rssm_conv_plan;

typedef struct rssm_conv_args {
  size_t size;
  const rssm_row* rows; /* c, write_slot and read_slot's value (but -1) are ignored */
  size_t row_bytes;     /* sizeof(rssm_row) */
  int32_t n_rows;
  int32_t n_ring_slots;
  int64_t n_tokens;                  /* tokens of the packed activations */
  rssm_tokens in;                    /* x [n_channels] */
  rssm_mutable_tokens out;           /* y [n_channels]; may not overlap `in` */
  const float* weight;               /* [w, n_channels], tap w - 1 is the token's own */
  const float* bias;                 /* [n_channels], or null */
  rssm_ring ring;                    /* activation dtype, [n_channels] a row */
  const rssm_parallel_for* parallel; /* CPU only, as in rssm_step_args */
} rssm_conv_args;

RSSM_API rssm_status rssm_conv_plan_create(const rssm_conv_problem* problem, rssm_conv_plan** plan);
RSSM_API void rssm_conv_plan_destroy(rssm_conv_plan* plan);
/* Windows of any length, a step's or a whole prompt; no fixed limit on n_tokens. */
RSSM_API rssm_status rssm_conv(const rssm_conv_plan* plan, const rssm_conv_args* args,
                               void* stream);

#ifdef __cplusplus
}
#endif

#endif /* REPLAYSSM_REPLAYSSM_H */
