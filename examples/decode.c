/* Decodes with one random Gated DeltaNet layer through the C interface, token by token and again by
 * verifying windows of four of which some tokens are rejected, and compares the outputs bit by bit.
 *
 *   decode            on the CPU
 *   decode --cuda     on a CUDA device (where the library has that backend)
 */
#include <replayssm/replayssm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DECODE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

enum {
  kHeads = 4,
  kKeyHeads = 2,
  kDim = 128,
  kInterval = 16,
  kWindow = 4,
  kRingRows = kInterval + 2 * kWindow - 1,
  kTokens = 200,
  kKeys = kKeyHeads * kDim,
  kValues = kHeads * kDim
};

static int on_device; /* where the layer's memory is */

static void die(const char* what) {
  fprintf(stderr, "decode: %s\n", what);
  exit(1);
}

static void check(rssm_status status) {
  if (status != RSSM_OK) die(rssm_last_error());
}

/* The layer's memory. */
static void* allocate(size_t bytes) {
  void* p = NULL;
#ifdef DECODE_WITH_CUDA
  if (on_device && cudaMalloc(&p, bytes) != cudaSuccess) die("cudaMalloc failed");
#endif
  if (!on_device) p = malloc(bytes);
  if (p == NULL) die("out of memory");
  return p;
}

static void release(void* p) {
#ifdef DECODE_WITH_CUDA
  if (on_device) cudaFree(p);
#endif
  if (!on_device) free(p);
}

static void copy(void* to, const void* from, size_t bytes) {
#ifdef DECODE_WITH_CUDA
  if (on_device && cudaMemcpy(to, from, bytes, cudaMemcpyDefault) != cudaSuccess) {
    die("cudaMemcpy failed");
  }
#endif
  if (!on_device) memcpy(to, from, bytes);
}

static void* upload(const void* from, size_t bytes) {
  void* p = allocate(bytes);
  copy(p, from, bytes);
  return p;
}

/* Numbers of about a normal law, the same on every machine. */
static float draw(uint64_t* seed) {
  float sum = 0;
  int i;
  for (i = 0; i < 12; ++i) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    sum += (float)(*seed >> 40) / 16777216.0f;
  }
  return sum - 6.0f;
}

static void draw_bf16(uint16_t* to, size_t n, uint64_t* seed) {
  size_t i;
  for (i = 0; i < n; ++i) {
    const float x = draw(seed);
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    to[i] = (uint16_t)(bits >> 16);
  }
}

static void draw_f32(float* to, size_t n, float mean, uint64_t* seed) {
  size_t i;
  for (i = 0; i < n; ++i) to[i] = mean + draw(seed);
}

/* The inputs of every token, and as many of drafts that will be rejected. */
struct inputs {
  uint16_t query[2][kTokens][kKeys], key[2][kTokens][kKeys], value[2][kTokens][kValues];
  float gate[2][kTokens][kHeads], beta[2][kTokens][kHeads], a_log[kHeads], dt_bias[kHeads];
};

/* Decodes all tokens with windows of `window`; y of token t goes to out + t * kValues. `seed`
 * decides how many tokens of a window are right. Returns the number of steps. */
static int decode(const rssm_plan* plan, const struct inputs* in, int window, uint64_t seed,
                  uint16_t* out) {
  rssm_sizes sizes;
  rssm_step_args args;
  rssm_sequence sequence = {0, 0, 0, 0}; /* a new sequence: slots need no clearing */
  rssm_row row;
  void *rows, *workspace = NULL;
  int steps = 0;

  sizes.size = sizeof(sizes);
  check(rssm_plan_sizes(plan, &sizes));
  memset(&args, 0, sizeof(args));
  args.size = sizeof(args);
  args.row_bytes = sizeof(row);
  args.n_rows = 1;
  args.n_slots = 1;
  args.n_ring_slots = 1;
  args.n_tokens = window;
  args.hints = window == 1 ? RSSM_HINT_SINGLE : 0;
  args.rows = rows = allocate(sizeof(row));
  args.query.data = allocate(kWindow * sizeof(in->query[0][0]));
  args.query.token_stride = kKeys;
  args.key.data = allocate(kWindow * sizeof(in->key[0][0]));
  args.key.token_stride = kKeys;
  args.value.data = allocate(kWindow * sizeof(in->value[0][0]));
  args.value.token_stride = kValues;
  args.gate.data = allocate(kWindow * sizeof(in->gate[0][0]));
  args.gate.token_stride = kHeads;
  args.beta.data = allocate(kWindow * sizeof(in->beta[0][0]));
  args.beta.token_stride = kHeads;
  args.out.data = allocate(kWindow * kValues * sizeof(uint16_t));
  args.out.token_stride = kValues;
  args.a_log = upload(in->a_log, sizeof(in->a_log));
  args.dt_bias = upload(in->dt_bias, sizeof(in->dt_bias));
  args.checkpoint = allocate((size_t)sizes.checkpoint_elements * 2);
  args.checkpoint_slot_stride = sizes.checkpoint_elements;
  args.ring_value.data = allocate((size_t)(kRingRows * sizes.ring_value_elements * 2));
  args.ring_value.row_stride = sizes.ring_value_elements;
  args.ring_value.slot_stride = kRingRows * sizes.ring_value_elements;
  args.ring_key.data = allocate((size_t)(kRingRows * sizes.ring_key_elements * 2));
  args.ring_key.row_stride = sizes.ring_key_elements;
  args.ring_key.slot_stride = kRingRows * sizes.ring_key_elements;
  args.ring_gate.data = allocate((size_t)(kRingRows * sizes.ring_gate_elements * 4));
  args.ring_gate.row_stride = sizes.ring_gate_elements;
  args.ring_gate.slot_stride = kRingRows * sizes.ring_gate_elements;
  args.workspace_bytes = rssm_workspace_bytes(plan, 1);
  if (args.workspace_bytes > 0) {
    workspace = malloc(args.workspace_bytes + 64);
    if (workspace == NULL) die("out of memory");
    args.workspace = (char*)workspace + (64 - (uintptr_t)workspace % 64) % 64;
  }

  while (sequence.n < kTokens) {
    const int64_t n = sequence.n;
    const int t = kTokens - n < window ? (int)(kTokens - n) : window;
    int right = t, i;
    if (window > 1) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      right = 1 + (int)((seed >> 33) % (uint64_t)t);
    }
    for (i = 0; i < t; ++i) {
      const int wrong = i >= right;
      const int64_t at = n + i;
      copy((uint16_t*)args.query.data + i * kKeys, in->query[wrong][at], kKeys * 2);
      copy((uint16_t*)args.key.data + i * kKeys, in->key[wrong][at], kKeys * 2);
      copy((uint16_t*)args.value.data + i * kValues, in->value[wrong][at], kValues * 2);
      copy((float*)args.gate.data + i * kHeads, in->gate[wrong][at], kHeads * 4);
      copy((float*)args.beta.data + i * kHeads, in->beta[wrong][at], kHeads * 4);
    }
    memset(&row, 0, sizeof(row));
    row.n = n;
    row.c = sequence.c;
    row.start = n;
    row.n_tokens = t;
    copy(rows, &row, sizeof(row)); /* slots are all 0 */
    check(rssm_step(plan, &args, NULL));
    copy(out + n * kValues, args.out.data, (size_t)right * kValues * 2);
    /* Rejecting the rest is not moving n. */
    check(rssm_commit_row(plan, &row, right, &sequence));
    ++steps;
  }

  release((void*)args.query.data);
  release((void*)args.key.data);
  release((void*)args.value.data);
  release((void*)args.gate.data);
  release((void*)args.beta.data);
  release((void*)args.a_log);
  release((void*)args.dt_bias);
  release(args.out.data);
  release(args.checkpoint);
  release(args.ring_value.data);
  release(args.ring_key.data);
  release(args.ring_gate.data);
  release(rows);
  free(workspace);
  return steps;
}

int main(int argc, char** argv) {
  static struct inputs in;
  static uint16_t tokens[kTokens * kValues], windows[kTokens * kValues];
  rssm_problem problem;
  rssm_plan* plan;
  uint64_t seed = 1;
  int steps;

  if (argc > 2 || (argc == 2 && strcmp(argv[1], "--cuda") != 0)) {
    die("the only argument is --cuda");
  }
  on_device = argc == 2;

  draw_bf16(&in.query[0][0][0], sizeof(in.query) / 2, &seed);
  draw_bf16(&in.key[0][0][0], sizeof(in.key) / 2, &seed);
  draw_bf16(&in.value[0][0][0], sizeof(in.value) / 2, &seed);
  draw_f32(&in.gate[0][0][0], sizeof(in.gate) / 4, 0.0f, &seed);
  draw_f32(&in.beta[0][0][0], sizeof(in.beta) / 4, 0.0f, &seed);
  draw_f32(in.a_log, kHeads, 0.0f, &seed);
  draw_f32(in.dt_bias, kHeads, -3.0f, &seed);

  memset(&problem, 0, sizeof(problem));
  problem.size = sizeof(problem);
  problem.backend = on_device ? RSSM_CUDA : RSSM_CPU;
  problem.family = RSSM_GDN;
  problem.n_heads = kHeads;
  problem.n_key_heads = kKeyHeads;
  problem.value_dim = kDim;
  problem.key_dim = kDim;
  problem.interval = kInterval;
  problem.ring_rows = kRingRows;
  problem.max_window = kWindow;
  problem.activation = RSSM_BF16;
  problem.ring = RSSM_F16;
  problem.checkpoint = RSSM_F16;
  problem.beta_scale = 1.0f;
  check(rssm_plan_create(&problem, &plan));

  printf("GDN, %d heads of %d x %d, a checkpoint every %d tokens, on %s\n", kHeads, kDim, kDim,
         kInterval, on_device ? "CUDA" : "the CPU");
  steps = decode(plan, &in, 1, 1, tokens);
  printf("token by token:             %d tokens in %d steps\n", kTokens, steps);
  steps = decode(plan, &in, kWindow, 1, windows);
  printf("windows of %d, with rejects: %d tokens in %d steps\n", kWindow, kTokens, steps);
  rssm_plan_destroy(plan);
  if (memcmp(tokens, windows, sizeof(tokens)) != 0) die("the outputs differ");
  printf("the outputs are equal, bit by bit\n");
  return 0;
}
