/*
 * Our products for Hopper GPUs on the emulated one, without the rest of the project; equal bytes or exit 1 with a line.
 *
 *   matmul_probe         the video decoder's (src/media/video_matmul.cu) beside plain loops and beside the kernels that do afterwards what a writer does; the candidate's
 *                        (kernels/candidate/cuda/gemm_hopper.cu) beside those of gemm.cu
 *   matmul_probe video   the former alone
 *   matmul_probe attention   the candidate's attention (attention_hopper.cu) beside that of attention.cu, which is in the first too
 *   matmul_probe gradients   its backward pass (attention_backward_hopper.cu), likewise
 *
 * The emulated tensor core sums 16 products of halves and the accumulator in double; for bfloat16 it is the exact model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include <cuda_runtime_api.h>

#include "base/half.h"
#include "h3/operator.h"
#include "media/video_kernels.h"

#include "../../kernels/candidate/cuda/common.h"
#include "emulate.h"

namespace {

typedef std::vector<uint16_t> halves;

/* As on a GPU: `data` lies in its memory. */
template <class T> struct on_device {
    T *data;
    size_t count;
    explicit on_device(const std::vector<T> &from) : count(from.size())
    {
        void *memory;
        if (cudaMalloc(&memory, count * sizeof(T)) != cudaSuccess || cudaMemcpy(memory, from.data(), count * sizeof(T), cudaMemcpyHostToDevice) != cudaSuccess) abort();
        data = static_cast<T *>(memory);
    }
    on_device(const on_device &) = delete;
    ~on_device() { cudaFree(data); }
    std::vector<T> host() const
    {
        std::vector<T> out(count);
        if (cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost) != cudaSuccess) abort();
        return out;
    }
};

uint32_t state = 1;
float made()
{
    state = state * 1664525u + 1013904223u;
    return (float)((int32_t)(state >> 8) % 2048) / 1024.0f - 1.0f;
}

halves made_halves(size_t count)
{
    halves out(count);
    for (uint16_t &value : out) value = h3_f32_to_f16(made());
    return out;
}

halves multiplied(const halves &x, const halves &weight, const halves &bias, int64_t rows, int64_t channels, int64_t columns)
{
    halves out((size_t)(rows * columns));
    std::vector<float> left(x.size()), right(weight.size());
    for (size_t i = 0; i < x.size(); i++) left[i] = h3_f16_to_f32(x[i]);
    for (size_t i = 0; i < weight.size(); i++) right[i] = h3_f16_to_f32(weight[i]);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < channels; k += 16) {
                double exact = sum;
                for (int64_t i = k; i < k + 16; i++) exact += (double)left[(size_t)(row * channels + i)] * (double)right[(size_t)(column * channels + i)];
                sum = (float)exact;
            }
            out[(size_t)(row * columns + column)] = h3_f32_to_f16(sum + h3_f16_to_f32(bias[(size_t)column]));
        }
    return out;
}

/* Whether the last launch was of blocks alone, or of pairs. */
bool was_by(unsigned blocks)
{
    if (h3_emulated.cluster != blocks) printf("by %u instead of %u blocks together\n", h3_emulated.cluster, blocks);
    return h3_emulated.cluster == blocks;
}

/* The residual stream: + the product * scale. */
int check_added(unsigned blocks, int64_t rows, int64_t channels, int64_t columns)
{
    const halves x = made_halves((size_t)(rows * channels)), weight = made_halves((size_t)(columns * channels)), bias = made_halves((size_t)columns);
    const halves product = multiplied(x, weight, bias, rows, channels, columns);
    std::vector<float> stream(product.size()), scale((size_t)columns), wanted;
    for (float &value : stream) value = made();
    for (float &value : scale) value = made();
    for (size_t i = 0; i < product.size(); i++) {
        const float scaled = h3_f16_to_f32(product[i]) * scale[i % (size_t)columns];
        wanted.push_back(stream[i] + scaled);
    }
    const on_device<uint16_t> dx(x), dweight(weight), dbias(bias);
    const on_device<float> dstream(stream), dscale(scale);
    h3_video_matmul m = {};
    m.kind = H3_VIDEO_MATMUL_ADDED, m.x = dx.data, m.weight = dweight.data, m.bias = dbias.data, m.out = dstream.data, m.scale = dscale.data;
    m.rows = rows, m.channels = channels, m.columns = columns;
    const int code = h3_video_matmul_fits(&m) ? h3_video_start_matmul(nullptr, &m) : -1;
    const std::vector<float> got = dstream.host();
    const bool equal = memcmp(got.data(), wanted.data(), got.size() * sizeof(float)) == 0, good = was_by(blocks) && code == 0 && equal;
    printf("%s added %lld x %lld to %lld: code %d, bytes%s equal\n", good ? "ok" : "not ok", (long long)rows, (long long)channels, (long long)columns, code, equal ? "" : " not");
    return !good;
}

int check(int kind, unsigned blocks, int64_t rows, int64_t channels, int64_t columns, int64_t tokens)
{
    static const char *const NAMES[] = {"plain", "gated", "heads"};
    const int64_t heads = columns / 192;
    const halves x = made_halves((size_t)(rows * channels)), weight = made_halves((size_t)(columns * channels)), bias = made_halves((size_t)columns);
    std::vector<float> angles((size_t)(tokens * 24));
    for (float &angle : angles) angle = h3_round_f16(made());
    const on_device<uint16_t> dx(x), dweight(weight), dbias(bias), product(multiplied(x, weight, bias, rows, channels, columns));
    const on_device<uint16_t> out(halves(product.count / (kind == H3_VIDEO_MATMUL_GATED ? 2 : 1), 0x7fff)), gated(halves(kind == H3_VIDEO_MATMUL_GATED ? out.count : 1));
    const on_device<float> cosine(angles), sine(std::vector<float>(angles.rbegin(), angles.rend()));
    h3_video_matmul m = {};
    m.kind = kind, m.epsilon = 1e-5f, m.x = dx.data, m.weight = dweight.data, m.bias = dbias.data, m.out = out.data;
    m.rows = rows, m.channels = channels, m.columns = columns, m.tokens = tokens, m.heads = heads, m.cosine = cosine.data, m.sine = sine.data;
    int code = h3_video_matmul_fits(&m) ? h3_video_start_matmul(nullptr, &m) : -1;
    const bool paired = was_by(blocks);
    if (code == 0 && kind == H3_VIDEO_MATMUL_GATED) code = h3_video_start_swiglu(nullptr, gated.data, product.data, 1, rows, columns / 2);
    if (code == 0 && kind == H3_VIDEO_MATMUL_HEADS) code = h3_video_start_rotate(nullptr, product.data, cosine.data, sine.data, 1, rows, tokens, heads, 64, 24, m.epsilon);
    const halves got = out.host(), wanted = kind == H3_VIDEO_MATMUL_GATED ? gated.host() : product.host();
    size_t wrong = 0;
    for (size_t i = 0; i < got.size(); i++) wrong += got[i] != wanted[i];
    const bool good = paired && code == 0 && wrong == 0;
    printf("%s %s %lld x %lld to %lld: code %d, %zu of %zu halves differ\n", good ? "ok" : "not ok", NAMES[kind], (long long)rows, (long long)channels,
           (long long)columns, code, wrong, got.size());
    return !good;
}

/* [count] bfloat16 between shift - scale and shift + scale. */
halves made_bfloats(int64_t count, float scale, float shift = 0.0f)
{
    halves out((size_t)count);
    for (uint16_t &value : out) {
        const float exact = scale * made() + shift;
        uint32_t bits;
        memcpy(&bits, &exact, sizeof bits);
        value = (uint16_t)(bits >> 16);
    }
    return out;
}

/* Kernels for Hopper GPUs, or the candidate's others. */
void ask_for(bool own)
{
    if (own) unsetenv("H3_CANDIDATE_PRODUCTS");
    else setenv("H3_CANDIDATE_PRODUCTS", "mma", 1);
}

/* The candidate's product both ways: `along` 0 as forward, 1 as the gradient of the input, 2 as that of the weight. */
int check_candidate(int along, unsigned blocks, int64_t rows, int64_t columns, int64_t depth, const char *kernel)
{
    static const char *const NAMES[] = {"forward", "input's gradient", "weight's gradient"};
    halves results[2];
    const char *kernels[2];
    const on_device<uint16_t> left(made_bfloats(rows * depth, 1.0f)), right(made_bfloats(columns * depth, 1.0f));
    for (int own = 0; own < 2; own++) {
        h3_call call = {};
        h3_gemm gemm = {};
        const on_device<uint16_t> out(halves((size_t)(rows * columns), 0x7fff));
        gemm.rows = rows, gemm.columns = columns, gemm.depth = depth, gemm.left = left.data, gemm.right = right.data, gemm.out = out.data;
        gemm.left_along = along == 2, gemm.right_along = along > 0;
        ask_for(own);
        kernels[own] = h3_gemm_kernel(&gemm);
        if (h3_gemm_run(&call, &gemm) != 0) printf("%s\n", call.message);
        results[own] = out.host();
    }
    const bool good = was_by(blocks) && results[0] == results[1] && strcmp(kernels[0], "mma_m16n8k16") == 0 && strcmp(kernels[1], kernel) == 0;
    printf("%s %s %lld x %lld to %lld: %s and %s, bytes%s equal\n", good ? "ok" : "not ok", NAMES[along], (long long)rows, (long long)depth, (long long)columns, kernels[0], kernels[1],
           results[0] == results[1] ? "" : " not");
    return !good;
}

/* What both of the candidate's attentions do: [batch][queries or keys][heads][128]. */
h3_attention attention_of(int64_t batch, int64_t queries, int64_t keys, int64_t heads)
{
    h3_attention a = {};
    a.batch = batch, a.queries = queries, a.keys = keys, a.heads = heads, a.head_dim = 128, a.alpha = 0.08838834764f;
    return a;
}

/* The candidate's attention both ways; with an infinite value, which must stay in its head. */
int check_attention(int64_t batch, int64_t queries, int64_t keys, int64_t heads)
{
    h3_attention a = attention_of(batch, queries, keys, heads);
    const int64_t query_count = batch * queries * heads * 128, key_count = batch * keys * heads * 128;
    halves values = made_bfloats(key_count, 1.0f), results[2];
    values[0] = 0x7f80;
    const on_device<uint16_t> q(made_bfloats(query_count, 6.0f)), k(made_bfloats(key_count, 1.0f)), v(values);
    std::vector<float> sums[2];
    bool fits = true;
    for (int own = 0; own < 2; own++) {
        h3_call call = {};
        const on_device<uint16_t> out(halves((size_t)query_count, 0x7fff));
        const on_device<float> lse(std::vector<float>((size_t)(batch * heads * queries), -1.0f));
        a.q = q.data, a.k = k.data, a.v = v.data, a.out = out.data, a.lse = lse.data;
        ask_for(own);
        fits = fits && h3_attention_hopper_fits(&a) == (own == 1);
        if (h3_attention_run_forward(&call, &a) != 0) printf("%s\n", call.message);
        results[own] = out.host();
        sums[own] = lse.host();
    }
    const bool good = fits && results[0] == results[1] && sums[0] == sums[1];
    printf("%s attention, %lld x %lld queries, %lld keys, %lld heads: %s\n", good ? "ok" : "not ok", (long long)batch, (long long)queries, (long long)keys, (long long)heads,
           good ? "bytes equal" : fits ? "bytes differ" : "not by both kernels");
    return !good;
}

/* Its gradients both ways, those that are wanted: 1 of the queries, 2 of the keys, 4 of the values. With a shift all scores are far below zero, where exp(0 - lse) is beyond numbers. */
int check_gradients(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int wanted, float shift = 0.0f)
{
    h3_attention a = attention_of(batch, queries, keys, heads);
    h3_call call = {};
    const int64_t counts[] = {batch * queries * heads * 128, batch * keys * heads * 128, batch * keys * heads * 128}, rows = batch * heads * queries;
    const on_device<uint16_t> q(made_bfloats(counts[0], 6.0f, -shift)), k(made_bfloats(counts[1], 1.0f, shift)), v(made_bfloats(counts[1], 1.0f)), dout(made_bfloats(counts[0], 1.0f));
    const on_device<uint16_t> out(halves((size_t)counts[0]));
    const on_device<float> lse(std::vector<float>((size_t)rows)), workspace(std::vector<float>((size_t)(batch * heads * ((queries + 63) / 64) * 128)));
    halves results[2][3];
    bool fits = true;
    a.q = q.data, a.k = k.data, a.v = v.data, a.out = out.data, a.lse = lse.data, a.dout = dout.data, a.delta = a.statistics = workspace.data;
    ask_for(false);
    if (h3_attention_run_forward(&call, &a) != 0) printf("%s\n", call.message);
    for (int own = 0; own < 2; own++) {
        const on_device<uint16_t> dq(halves((size_t)counts[0], 0x7fff)), dk(halves((size_t)counts[1], 0x7fff)), dv(halves((size_t)counts[1], 0x7fff));
        a.dq = wanted & 1 ? dq.data : nullptr, a.dk = wanted & 2 ? dk.data : nullptr, a.dv = wanted & 4 ? dv.data : nullptr;
        ask_for(own);
        fits = fits && h3_attention_hopper_backward_fits(&a) == (own == 1);
        if (h3_attention_run_backward(&call, &a) != 0) printf("%s\n", call.message);
        results[own][0] = dq.host(), results[own][1] = dk.host(), results[own][2] = dv.host();
    }
    bool good = fits;
    for (int i = 0; i < 3; i++) good = good && results[0][i] == results[1][i];
    printf("%s gradients %d, %lld x %lld queries, %lld keys, %lld heads: %s\n", good ? "ok" : "not ok", wanted, (long long)batch, (long long)queries, (long long)keys, (long long)heads,
           good ? "bytes equal" : fits ? "bytes differ" : "not by both kernels");
    return !good;
}

/* Each kernel of the candidate by pairs of blocks, three row tiles among them, and by blocks alone; nothing is whole tiles or stages. */
int check_candidates(int along)
{
    static const struct {
        unsigned blocks;
        int rows, columns, depth;
        const char *kernel;
    } TURNED[] = {
        {2, 66, 136, 136, "wgmma_m64n88k16"}, {2, 90, 264, 72, "wgmma_m64n136k16"}, {2, 138, 264, 72, "wgmma_m64n160k16"},
        {2, 162, 264, 72, "wgmma_m64n176k16"}, {2, 178, 264, 72, "wgmma_m64n232k16"}, {1, 66, 520, 136, "wgmma_m64n88k16"},
        {1, 90, 520, 24, "wgmma_m64n136k16"}, {1, 138, 520, 24, "wgmma_m64n160k16"}, {1, 162, 520, 24, "wgmma_m64n176k16"},
        {1, 178, 520, 24, "wgmma_m64n232k16"},
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof TURNED / sizeof *TURNED && along < 2; i++)
        failed += check_candidate(along, TURNED[i].blocks, TURNED[i].rows, TURNED[i].columns, TURNED[i].depth, TURNED[i].kernel);
    failed += check_candidate(along, 1, along < 2 ? 66 : 128, 648, 200, "wgmma_m64n256k16");
    failed += check_candidate(along, 2, along < 2 ? 234 : 264, 264, 136, "wgmma_m64n256k16");
    return failed;
}

} // namespace

int main(int argc, char **argv)
{
    int failed = 0;
    const bool video = argc < 2 || strcmp(argv[1], "video") == 0, attention = argc < 2 || strcmp(argv[1], "attention") == 0, gradients = argc < 2 || strcmp(argv[1], "gradients") == 0;
    setenv("H3_EMULATE_PROCESSORS", "4", 1); /* a unit asks for them once */
    if (video) {
        failed += check(H3_VIDEO_MATMUL_PLAIN, 2, 262, 192, 256, 1);  /* rows that end within a tile; a pair with one tile */
        failed += check(H3_VIDEO_MATMUL_PLAIN, 1, 3, 64, 512, 1);     /* one stage a tile */
        failed += check(H3_VIDEO_MATMUL_PLAIN, 1, 2100, 64, 768, 1);  /* more rows of tiles than are neighbours in time, and tiles than stages */
        failed += check(H3_VIDEO_MATMUL_PLAIN, 2, 2304, 64, 512, 1);
        failed += check(H3_VIDEO_MATMUL_GATED, 2, 134, 128, 768, 1);
        failed += check(H3_VIDEO_MATMUL_HEADS, 2, 400, 256, 768, 43);
        failed += check(H3_VIDEO_MATMUL_GATED, 1, 100, 320, 768, 1);
        failed += check_added(2, 278, 192, 512);
    }
    if (attention) {
        failed += check_attention(2, 200, 200, 2);
        failed += check_attention(1, 130, 64, 1); /* one tile of keys */
        failed += check_attention(7, 5, 7, 3);    /* more parts than processors, a group without rows */
        failed += check_attention(2, 160, 70, 3); /* whole parts of a block, then the others */
        failed += check_attention(1, 64, 700, 1); /* more tiles than places */
    }
    if (gradients) {
        failed += check_gradients(1, 130, 70, 1, 7); /* a block and two rows; a tile and six */
        failed += check_gradients(2, 5, 66, 2, 3, 8.0f);
        failed += check_gradients(1, 5, 330, 1, 1); /* more tiles than places */
        failed += check_gradients(1, 1300, 5, 1, 4); /* five times round the places */
    }
    setenv("H3_EMULATE_PROCESSORS", "5", 1);
    for (int along = 0; argc < 2 && along < 3; along++) failed += check_candidates(along);
    if (argc < 2) failed += check_candidate(2, 2, 200, 264, 77, "wgmma_m64n256k16"); /* rows that are no multiple of anything */
    return failed != 0;
}
