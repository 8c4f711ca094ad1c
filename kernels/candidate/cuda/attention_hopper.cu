/* Attention's forward pass for heads of 128 on a Hopper GPU (src/hopper/attend.cuh): the contract and the bits of attention.cu. */
#include "device.cuh"
#include "softmax.cuh"

#include "attend.cuh"

namespace {

struct kind {
    static constexpr bool HALF = false;
    static constexpr int DEPTH = 128, KEYS = ::KEYS, STAGES = 4;
    typedef softmax_state state;

    static __device__ __forceinline__ void begin(state &s) { begin_softmax(s); }

    static __device__ __forceinline__ void keep(state &s)
    {
        h3_steps_keep(s.sums[0]);
        h3_steps_keep(s.sums[1]);
        h3_steps_keep(s.rounded_sums[0]);
        h3_steps_keep(s.rounded_sums[1]);
    }

    static __device__ __forceinline__ void update(state &s, float (&scores)[KEYS / 2], uint32_t (&weights)[KEYS / 4], float (&turn)[2], float octaves)
    {
        update_softmax(s, reinterpret_cast<float(&)[KEYS / 8][4]>(scores), reinterpret_cast<uint32_t(&)[KEYS / 8][2]>(weights), turn, octaves);
    }

    static __device__ __forceinline__ void finish(const attend_work &w, const state &s, float (&inverse)[2], int64_t head, int first, int lane)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = sum_of_parts(s.sums[half]);
            const int row = first + 8 * half;
            inverse[half] = 1.0f / sum_of_parts(s.rounded_sums[half]);
            if (lane % 4 == 0 && row < w.queries) w.lse[head * w.queries + row] = w.alpha * s.largest[half] + logf(sum);
        }
    }
};

attend_work work_of(const h3_attention &a)
{
    attend_work w = {};
    w.q = a.q, w.k = a.k, w.v = a.v, w.out = a.out, w.lse = a.lse;
    w.items = a.batch, w.queries = a.queries, w.keys = a.keys, w.heads = a.heads, w.pitch = a.heads * a.head_dim;
    w.alpha = a.alpha, w.octaves = a.alpha * H3_LOG2_E;
    return w;
}

} // namespace

extern "C" bool h3_attention_hopper_fits(const h3_attention *a) { return h3_hopper_is_wanted() && a->head_dim == kind::DEPTH && attend_fits<kind>(work_of(*a)); }

extern "C" int h3_attention_hopper_run(h3_call *call, const h3_attention *a)
{
    static const char name[] = "attention_wgmma";
    return h3_cuda_status(call, name, (cudaError_t)attend_start<kind>(call->stream, name, work_of(*a)));
}
