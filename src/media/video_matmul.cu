/*
 * The video decoder's large products on a Hopper GPU (src/hopper/matmul.cuh), with what follows them done where the finished tile already is: its halves neither go to
 * memory nor come back for the gate and for the rotation of the heads. What comes out has the bytes of the product and of the kernels of video_layers.cu after each other.
 */
#include "../hopper/matmul.cuh"
#include "video_rows.cuh"

namespace {

/* Halves that lie across, with a bias. */
typedef matmul_kind<true, 0, 0, true> kind;

constexpr int WRITERS = matmul::WRITERS;

struct write_plain {
    uint16_t *out;
    int columns;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int column, int warp, int lane) const
    {
        for (int row = warp; row < count; row += WRITERS)
            *(uint4 *)(out + (first + row) * columns + column * kind::COLUMNS + 8 * lane) = *(const uint4 *)(tile + matmul_spot<kind>(row, lane));
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
            const uint4 value = *(const uint4 *)(tile + matmul_spot<kind>(row, piece)), gate = *(const uint4 *)(tile + matmul_spot<kind>(row, 16 + piece));
            *(uint4 *)(out + (first + row) * width + column * (kind::COLUMNS / 2) + 8 * piece) = gated_eight(value, gate);
        }
    }
};

/* A tile holds four heads of 64, all of them q, or k, or v; eight lanes a head. The steps of two rows stand among each other: each waits long for its neighbours' lanes. */
struct write_heads {
    static constexpr int AHEAD = 2;
    uint16_t *out;
    const float *cosine, *sine;
    int tokens, heads;
    float epsilon;

    __device__ __forceinline__ void operator()(const uint16_t *tile, int64_t first, int count, int column, int warp, int lane) const
    {
        const int columns = 3 * heads * 64, part = lane % 8;
        if (column * (kind::COLUMNS / 64) >= 2 * heads) return write_plain{out, columns}(tile, first, count, column, warp, lane);
        for (int start = warp; start < count; start += AHEAD * WRITERS) {
            uint4 words[AHEAD];
            turns turn[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int row = start + i * WRITERS < count ? start + i * WRITERS : start;
                turn[i] = turns_at(cosine, sine, (int)(first + row) % tokens, part);
                words[i] = *(const uint4 *)(tile + matmul_spot<kind>(row, lane));
            }
            rotate_64<AHEAD>(words, turn, part, epsilon);
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (start + i * WRITERS < count) *(uint4 *)(out + (first + start + i * WRITERS) * columns + column * kind::COLUMNS + 8 * lane) = words[i];
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
        const int own = column * kind::COLUMNS + 8 * lane;
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
                const uint4 branch = *(const uint4 *)(tile + matmul_spot<kind>(row, lane));
                float4 *to = (float4 *)(out + (first + row) * columns + own);
                to[0] = scaled_sum(sums[i][0], four_of(branch.x, branch.y), low);
                to[1] = scaled_sum(sums[i][1], four_of(branch.z, branch.w), high);
            }
        }
    }
};

matmul shape_of(const h3_video_matmul &p)
{
    const bool is_gated = p.kind == H3_VIDEO_MATMUL_GATED;
    const int half = kind::COLUMNS / 2;
    matmul shape = {};
    shape.left = p.x, shape.right = p.weight, shape.bias = (const uint16_t *)p.bias;
    shape.rows = p.rows, shape.columns = p.columns, shape.depth = p.channels;
    shape.second = is_gated ? (int)p.columns / 2 : half;
    shape.step = is_gated ? half : kind::COLUMNS;
    return shape;
}

} // namespace

int h3_video_matmul_fits(const h3_video_matmul *p)
{
    const uintptr_t places = (uintptr_t)p->out | (uintptr_t)p->cosine | (uintptr_t)p->sine | (uintptr_t)p->scale;
    if (places % 16 != 0 || p->channels % matmul::DEPTH != 0 || p->columns % kind::COLUMNS != 0 || !matmul_fits<kind>(shape_of(*p))) return 0;
    return p->kind != H3_VIDEO_MATMUL_HEADS || (p->columns == 3 * p->heads * 64 && p->heads % 4 == 0 && p->tokens >= 1 && p->tokens <= (int64_t)1 << 30);
}

int h3_video_start_matmul(void *stream, const h3_video_matmul *p)
{
    const matmul shape = shape_of(*p);
    const int columns = (int)p->columns;
    uint16_t *out = (uint16_t *)p->out;
    if (p->kind == H3_VIDEO_MATMUL_GATED) return matmul_start<kind>(stream, "matmul_gated", shape, write_gated{out, columns / 2});
    if (p->kind == H3_VIDEO_MATMUL_ADDED) return matmul_start<kind>(stream, "matmul_added", shape, write_added{(float *)p->out, p->scale, columns});
    if (p->kind == H3_VIDEO_MATMUL_HEADS)
        return matmul_start<kind>(stream, "matmul_heads", shape, write_heads{out, p->cosine, p->sine, (int)p->tokens, (int)p->heads, p->epsilon});
    return matmul_start<kind>(stream, "matmul", shape, write_plain{out, columns});
}
