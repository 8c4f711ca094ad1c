/*
 * The operator interface: everything a library of H3 operators has to know.
 *
 * An operator library is a shared object that exports one function,
 *     const h3_operator_library *h3_operator_library_get(void);
 * The qualification loads it, asks each bound operator to plan() (saved tensors, workspace) and then calls
 * forward() and backward(). Nothing else is shared: no globals, no hidden state between the two calls.
 *
 * Plain C11, usable from C++, CUDA and from objects that another compiler made.
 */
#ifndef H3_OPERATOR_H
#define H3_OPERATOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define H3_OPERATOR_INTERFACE 1u
#define H3_MAX_RANK 5
#define H3_MAX_IN 4
#define H3_MAX_PARAM 4
#define H3_MAX_SAVED 2
#define H3_ROW_GRADS 6

/* Element types. bfloat16 is the upper half of an IEEE float32. IEEE half precision (F16) and bytes (U8) reach no operator: files and decoders have them. */
enum { H3_NONE = 0, H3_F32 = 1, H3_BF16 = 2, H3_I32 = 3, H3_I64 = 4, H3_F64 = 5, H3_F16 = 6, H3_U8 = 7 };

enum { H3_DEVICE_CPU = 0, H3_DEVICE_CUDA = 1 };

/* A tensor that the caller owns. Strides count elements. Every tensor passed today is dense and row-major;
 * an operator that needs that may rely on it. An absent tensor has data == NULL and rank == 0. */
typedef struct h3_tensor {
    void *data;
    int32_t dtype;
    int32_t rank;
    int64_t shape[H3_MAX_RANK];
    int64_t stride[H3_MAX_RANK];
} h3_tensor;

/* What really ran. The library fills it in every call. */
typedef struct h3_call_report {
    char kernel[96];  /* name of the kernel or algorithm */
    int32_t fallback; /* non-zero: something else than the operator's own kernel ran */
} h3_call_report;

/*
 * One call. Symbols: R packed rows (batch * S for row-wise nodes), B batch, S rows of an item, T timesteps, N heads,
 * D head_dim, I = N*D, H hidden_size, F ffn_dim, E time_embed_dim, K rope_freq_dim (so 3K rotary angles).
 * "a" is the activation type: BF16, or F32 when the caller evaluates the node in FP32 (only providers must support F32).
 *
 * forward:
 *   node               in                                             param             out
 *   adaln_projection   temb [T,E] f32                                 W [18H,E] b [18H] table [3T,6,H] a
 *   norm1, norm2       x [R,H], table [3T,6,H], row_index [R] i32     weight [H]        m [R,H]
 *   q_proj k_proj v_proj   m1 [R,H]                                   W [I,H]           [R,I]
 *   q_norm k_norm      x [R,N,D]                                      weight [D]        [R,N,D]
 *   rope_q rope_k      x [R,N,D], cos [R,3K] a, sin [R,3K] a          -                 [R,N,D]
 *   attention          q [B,Rq,N,D], k [B,S,N,D], v [B,S,N,D]         -                 o [B,Rq,N,D]
 *   o_proj             o [R,I]                                        W [H,I]           [R,H]
 *   residual_attn, residual_mlp  x [R,H], branch [R,H], table, row_index   -            [R,H]
 *   ffn_gate_up        m2 [R,H]                                       W [2F,H]          [R,2F] = [value | gate]
 *   swiglu             gu [R,2F]                                      -                 [R,F]
 *   ffn_down           s [R,F]                                        W [H,F]           [R,H]
 *   `chunk` is the first of the six chunks of the table (shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp)
 *   that the node uses: norm1 0 (shift 0, scale 1), residual_attn 2, norm2 3 (shift 3, scale 4), residual_mlp 5.
 *   Without a table (in[] absent: refiner blocks) norm and residual run unmodulated: m = RMSNorm(x), x + branch.
 *   row_index[r] selects the table row: 3 * timestep_index + modality tag.
 *   RMS norms use `epsilon`.
 *
 * backward, given the forward's in, param, out and saved, and dout (gradient of out):
 *   din[i] the gradient of in[i] where it has one and din[i] is present; dparam[i] likewise, in the parameter's type.
 *   norm1, norm2       din[0], dparam[0]; row_grad[0] = shift's, row_grad[1] = scale's gradient, [R,H] a
 *   residual_*         din[1] (the branch; the pass-through of x is the caller's); row_grad[0] = gate's gradient [R,H] a
 *   adaln_projection   dout is absent; row_grad[0..5] are the six row gradients in chunk order and row_index their rows;
 *                      writes dtable [3T,6,H] a, din[0] = dtemb [T,E] f32, dparam[0] = dW, dparam[1] = db
 *   rope: no gradient for cos and sin.
 *   A gradient tensor that is absent need not be computed.
 *
 * Boundary operators, which only providers have (C columns, O outputs, Q freq_dim, Eh time_embed_hidden_dim):
 *   linear_bias    in x [R,C]; param W [O,C], b [O]; out [R,O], all of one type. backward: din[0] (may be absent), dparam[0..1]
 *   time_embedder  in timestep [T]; param linear_1 W [Eh,Q], b, linear_2 W [E,Eh], b; out temb [T,E]; saved features [T,Q],
 *                  z1 [T,Eh]; all f32. backward: dparam[0..3]
 *   rotary_table   in position [S,3] f32, inverse frequency [K] f32; out [2,S,3K] a: cosines, then sines. No backward
 *   norm_out       in h [R,H], temb [T,E] f32, timestep index [R] i32; param norm weight [H], W [2H,E], b [2H]; out y [R,H];
 *                  saved Z [T,2H] a = [shift | scale]. backward: din[0], din[1], dparam[0..2]
 *   add            in two tensors of one shape and type; out their sum, rounded once. No backward
 *   convert        in one tensor; out the same in out's type (F32 <-> BF16). No backward
 *   scatter_rows   in rows [n,H], index [n] i32; out [S,H]: out[index[i]] = rows[i], other rows untouched.
 *                  backward: din[0][i] = dout[index[i]]
 */
typedef struct h3_call {
    uint32_t size; /* sizeof(h3_call) of the caller */
    int32_t device;
    int32_t device_index;
    int32_t chunk;
    float epsilon;
    void *stream; /* cudaStream_t on CUDA, NULL on CPU */
    h3_tensor in[H3_MAX_IN];
    h3_tensor param[H3_MAX_PARAM];
    h3_tensor out;
    h3_tensor saved[H3_MAX_SAVED];
    h3_tensor dout;
    h3_tensor din[H3_MAX_IN];
    h3_tensor dparam[H3_MAX_PARAM];
    h3_tensor row_grad[H3_ROW_GRADS];
    h3_tensor row_index;
    h3_tensor dtable;
    void *workspace; /* 64-byte aligned on CPU, 256 on CUDA; contents undefined */
    size_t workspace_bytes;
    h3_call_report report;
    char message[160]; /* one line when a call returns non-zero */
} h3_call;

/* What a call of these shapes needs. */
typedef struct h3_call_plan {
    size_t forward_workspace;
    size_t backward_workspace;
    int32_t saved_count;
    h3_tensor saved[H3_MAX_SAVED]; /* dtype, rank, shape; data stays NULL */
} h3_call_plan;

/* Promises: the gate checks every one it finds, and fails the node that breaks it. */
enum {
    H3_PROMISE_REPEAT = 1,           /* same inputs, same bytes */
    H3_PROMISE_BATCH_ROW = 2,        /* a row's bytes do not depend on what is beside it */
    H3_PROMISE_ISOLATED_BITWISE = 4, /* forward equals the BF16 provider's bytes on the provider's inputs */
};

/* Status of a call: 0 done, anything else failed with `message` set. */
typedef struct h3_operator {
    const char *node;     /* name of the node it serves */
    const char *name;     /* its own name, the one in bindings */
    const char *row;      /* operator row that owns the arithmetic, for example "h3_rmsnorm" */
    const char *label;    /* "row", "interim" or "reference" */
    const char *contract; /* reduction contract id: the named, versioned order in which it sums */
    uint32_t promises;
    int (*plan)(const h3_call *call, h3_call_plan *plan); /* shapes are set; data may be NULL */
    int (*forward)(h3_call *call);
    int (*backward)(h3_call *call);
} h3_operator;

enum { H3_BUILD_FAST_MATH = 1, H3_BUILD_DIRTY = 2 };

typedef struct h3_operator_library {
    uint32_t interface_version; /* H3_OPERATOR_INTERFACE */
    uint32_t size;              /* sizeof(h3_operator_library) */
    const char *name;
    const char *revision; /* of the sources */
    const char *compiler;
    const char *flags;
    const char *architectures;
    uint32_t build; /* H3_BUILD_* bits; start from H3_BUILD_THIS */
    int32_t device;
    uint32_t operator_count;
    const h3_operator *operators;
} h3_operator_library;

typedef const h3_operator_library *(*h3_operator_library_get_fn)(void);
#define H3_OPERATOR_LIBRARY_SYMBOL "h3_operator_library_get"
#define H3_EXPORT __attribute__((visibility("default")))

/* The build bits that the compiler itself can vouch for. */
#if defined(__FAST_MATH__) || defined(__USE_FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#define H3_BUILD_THIS ((uint32_t)H3_BUILD_FAST_MATH)
#else
#define H3_BUILD_THIS 0u
#endif

/* bfloat16 as the model rounds it: to nearest, ties to even. A NaN stays a (quiet) NaN. */
static inline float h3_bf16_to_f32(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline uint16_t h3_f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline size_t h3_dtype_size(int32_t dtype)
{
    return dtype == H3_BF16 || dtype == H3_F16 ? 2u : (dtype == H3_F32 || dtype == H3_I32) ? 4u : (dtype == H3_I64 || dtype == H3_F64) ? 8u : dtype == H3_U8 ? 1u : 0u;
}

static inline int64_t h3_tensor_count(const h3_tensor *tensor)
{
    int64_t count = tensor->rank > 0 ? 1 : 0;
    for (int32_t i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    return count;
}

#ifdef __cplusplus
}
#endif
#endif
