/*
 * The video decoder's large products on a Hopper GPU (src/hopper/matmul.cuh), with what follows them done where the finished tile already is: its halves neither go to
 * memory nor come back for the gate and for the rotation of the heads. What comes out has the bytes of the product and of the kernels of video_layers.cu after each other.
 */
#include "../hopper/matmul.cuh"
#include "../hopper/tensor_map.h"
#include "video_rows.cuh"

namespace {

constexpr int WRITERS = matmul::WRITERS;

struct write_plain {
    uint16_t *out;
    int columns;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int column, int warp, int lane) const
    {
        for (int row = warp; row < count; row += WRITERS)
            *(uint4 *)(out + (first + row) * columns + column * matmul::COLUMNS + 8 * lane) = *(const uint4 *)(tile + matmul_spot(row, lane));
    }
};

/* A tile holds 128 values and then the 128 gates of the same columns; a warp takes two rows at a time. */
struct write_gated {
    uint16_t *out;
    int width;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int column, int warp, int lane) const
    {
        const int piece = lane % 16;
        for (int row = 2 * warp + lane / 16; row < count; row += 2 * WRITERS) {
            const uint4 value = *(const uint4 *)(tile + matmul_spot(row, piece)), gate = *(const uint4 *)(tile + matmul_spot(row, 16 + piece));
            *(uint4 *)(out + (first + row) * width + column * (matmul::COLUMNS / 2) + 8 * piece) = gated_eight(value, gate);
        }
    }
};

/* A tile holds four heads of 64, all of them q, or k, or v; eight lanes a head. */
struct write_heads {
    uint16_t *out;
    const float *cosine, *sine;
    int tokens, heads;
    float epsilon;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int column, int warp, int lane) const
    {
        const int columns = 3 * heads * 64, part = lane % 8;
        const bool turned = column * (matmul::COLUMNS / 64) < 2 * heads;
#pragma unroll 2
        for (int row = warp; row < count; row += WRITERS) {
            uint4 words = *(const uint4 *)(tile + matmul_spot(row, lane));
            if (turned) words = rotated_64(words, turns_at(cosine, sine, (int)(first + row) % tokens, part), part, epsilon);
            *(uint4 *)(out + (first + row) * columns + column * matmul::COLUMNS + 8 * lane) = words;
        }
    }
};

/* Rows of a residual stream that grow by the tile's; several are read before the first is written, since they come from afar. */
struct write_added {
    float *out;
    const float *scale;
    int columns;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int column, int warp, int lane) const
    {
        constexpr int AHEAD = 4;
        const int own = column * matmul::COLUMNS + 8 * lane;
        const float4 *scales = (const float4 *)(scale + own), low = scales[0], high = scales[1];
        for (int start = warp; start < count; start += AHEAD * WRITERS) {
            float4 sums[AHEAD][2];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int row = start + i * WRITERS;
                const float4 *from = (const float4 *)(out + (first + (row < count ? row : start)) * columns + own);
                sums[i][0] = from[0], sums[i][1] = from[1];
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int row = start + i * WRITERS;
                if (row >= count) break;
                const uint4 branch = *(const uint4 *)(tile + matmul_spot(row, lane));
                float4 *to = (float4 *)(out + (first + row) * columns + own);
                to[0] = scaled_sum(sums[i][0], four_of(branch.x, branch.y), low);
                to[1] = scaled_sum(sums[i][1], four_of(branch.z, branch.w), high);
            }
        }
    }
};

/* The GPU's multiprocessors, 0 where the kernel cannot run. */
int processors_of_hopper()
{
    static int known = -1; /* one GPU a process */
    int device, major, minor, processors;
    if (known >= 0) return known;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    return known = major == 9 && minor == 0 ? processors : 0;
}

template <class Writer> int start(void *stream, const char *name, const CUtensorMap &x, const CUtensorMap &weight, const matmul &p, const Writer &write)
{
    const int tiles = matmul_tiles(p), most = processors_of_hopper();
    const unsigned grid = (unsigned)(tiles < most ? tiles : most);
#ifdef H3_EMULATE
    (void)stream;
    h3_emulate(name, dim3(grid), matmul::THREADS, sizeof(matmul_memory), [=] { matmul_kernel<Writer>(x, weight, p, write); });
#else
    (void)name;
    const cudaError_t code = cudaFuncSetAttribute(matmul_kernel<Writer>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(matmul_memory));
    if (code != cudaSuccess) return (int)code;
    matmul_kernel<Writer><<<grid, matmul::THREADS, sizeof(matmul_memory), (cudaStream_t)stream>>>(x, weight, p, write);
#endif
    return (int)cudaGetLastError();
}

} // namespace

int h3_video_matmul_fits(const h3_video_matmul *p)
{
    const uintptr_t places = (uintptr_t)p->x | (uintptr_t)p->weight | (uintptr_t)p->bias | (uintptr_t)p->out | (uintptr_t)p->cosine | (uintptr_t)p->sine | (uintptr_t)p->scale;
    const int64_t limit = (int64_t)1 << 30;
    if (places % 16 != 0 || p->rows < 1 || p->rows > limit || p->channels > limit || p->columns > limit) return 0;
    if (p->channels < matmul::DEPTH || p->channels % matmul::DEPTH != 0 || p->columns < matmul::COLUMNS || p->columns % matmul::COLUMNS != 0) return 0;
    if (p->kind == H3_VIDEO_MATMUL_HEADS && (p->columns != 3 * p->heads * 64 || p->heads % 4 != 0 || p->tokens < 1 || p->tokens > limit)) return 0;
    return (p->rows + matmul::ROWS - 1) / matmul::ROWS * (p->columns / matmul::COLUMNS) <= limit && processors_of_hopper() > 0;
}

int h3_video_start_matmul(void *stream, const h3_video_matmul *p)
{
    const bool is_gated = p->kind == H3_VIDEO_MATMUL_GATED;
    const int half = matmul::COLUMNS / 2;
    const matmul shape = {p->rows, (int)p->channels, (int)p->columns, is_gated ? (int)p->columns / 2 : half, is_gated ? half : matmul::COLUMNS, (const uint16_t *)p->bias};
    uint16_t *out = (uint16_t *)p->out;
    CUtensorMap x, weight;
    int code = h3_tensor_map(&x, p->x, p->rows, p->channels, matmul::ROWS);
    if (code == cudaSuccess) code = h3_tensor_map(&weight, p->weight, p->columns, p->channels, half);
    if (code != cudaSuccess) return code;
    if (is_gated) return start(stream, "matmul_gated", x, weight, shape, write_gated{out, (int)p->columns / 2});
    if (p->kind == H3_VIDEO_MATMUL_ADDED) return start(stream, "matmul_added", x, weight, shape, write_added{(float *)p->out, p->scale, (int)p->columns});
    if (p->kind == H3_VIDEO_MATMUL_HEADS)
        return start(stream, "matmul_heads", x, weight, shape, write_heads{out, p->cosine, p->sine, (int)p->tokens, (int)p->heads, p->epsilon});
    return start(stream, "matmul", x, weight, shape, write_plain{out, (int)p->columns});
}
