#include "media/audio_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { CONFIG_LIMIT = 1 << 20, CHANNEL_LIMIT = 1 << 16, RATE_LIMIT = 64, KERNEL_LIMIT = 255, DILATION_LIMIT = 255, HOP_LIMIT = 1 << 16 };

/* The encoder's fields are checked for their type and otherwise left alone. */
static const char *const KEYS[] = {"encoder_dim",     "encoder_rates",        "latent_dim",           "latent_channels",         "num_attention_heads",
                                   "decoder_dim",     "decoder_rates",        "decoder_kernel_sizes", "resblock_kernel_sizes",   "resblock_dilation_sizes",
                                   "sampling_rate",   "latents_mean",         "latents_std",          NULL};

static h3_status check_known(const cJSON *object, const char *where)
{
    const cJSON *child;
    if (!cJSON_IsObject(object)) return h3_error(H3_INTEGRITY, "%s: a configuration must be a JSON object", where);
    cJSON_ArrayForEach(child, object) {
        int known = child->string[0] == '_';
        for (int i = 0; KEYS[i] != NULL && !known; i++) known = strcmp(KEYS[i], child->string) == 0;
        if (!known)
            return h3_error(H3_INTEGRITY, "%s: unknown field \"%.200s\"; this is no H3 audio autoencoder that we know", where, child->string);
    }
    return H3_OK;
}

/* An array of 1 to `most` integers in 1..high; `count` gets how many. */
static h3_status integers_of(int64_t *out, int64_t *count, const cJSON *array, const char *key, int64_t most, int64_t high, const char *where)
{
    const cJSON *item;
    *count = 0;
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) < 1 || cJSON_GetArraySize(array) > most)
        return h3_error(H3_INTEGRITY, "%s: \"%s\" must be an array of 1 to %lld integers", where, key, (long long)most);
    cJSON_ArrayForEach(item, array) H3_TRY(h3_json_integer_value(&out[(*count)++], item, key, 1, high, where, H3_INTEGRITY));
    return H3_OK;
}

static h3_status read_integers(int64_t *out, int64_t *count, const cJSON *object, const char *key, int64_t most, int64_t high, const char *where)
{
    const cJSON *array;
    H3_TRY(h3_json_array(&array, object, key, where, H3_INTEGRITY));
    return integers_of(out, count, array, key, most, high, where);
}

static h3_status read_floats(float *out, int64_t count, const cJSON *object, const char *key, const char *where)
{
    const cJSON *array, *item;
    int64_t i = 0;
    H3_TRY(h3_json_array(&array, object, key, where, H3_INTEGRITY));
    if (cJSON_GetArraySize(array) != count)
        return h3_error(H3_INTEGRITY, "%s: \"%s\" has %d numbers for %lld latent channels", where, key, cJSON_GetArraySize(array), (long long)count);
    cJSON_ArrayForEach(item, array) {
        if (!cJSON_IsNumber(item)) return h3_error(H3_INTEGRITY, "%s: \"%s\" must hold numbers only", where, key);
        out[i] = (float)item->valuedouble;
        if (!isfinite(out[i])) return h3_error(H3_INTEGRITY, "%s: \"%s\" holds a number beyond float32", where, key);
        i++;
    }
    return H3_OK;
}

static h3_status read_dilations(h3_audio_config *config, const cJSON *object, const char *where)
{
    static const char KEY[] = "resblock_dilation_sizes";
    const cJSON *lists, *list;
    int64_t i = 0;
    H3_TRY(h3_json_array(&lists, object, KEY, where, H3_INTEGRITY));
    if (cJSON_GetArraySize(lists) != config->branches)
        return h3_error(H3_INTEGRITY, "%s: %s has %d lists for %lld kernel sizes", where, KEY, cJSON_GetArraySize(lists), (long long)config->branches);
    cJSON_ArrayForEach(list, lists) {
        H3_TRY(integers_of(config->dilations[i], &config->dilation_count[i], list, KEY, H3_AUDIO_DILATIONS, DILATION_LIMIT, where));
        i++;
    }
    return H3_OK;
}

static h3_status check_stages(const h3_audio_config *config, int64_t kernel_count, const char *where)
{
    int64_t hop = 1;
    if (kernel_count != config->stages)
        return h3_error(H3_INTEGRITY, "%s: %lld decoder_kernel_sizes for %lld decoder_rates", where, (long long)kernel_count, (long long)config->stages);
    for (int64_t i = 0; i < config->stages; i++) {
        int64_t kernel = config->kernels[i], rate = config->rates[i];
        if (kernel < rate || (kernel - rate) % 2 != 0)
            return h3_error(H3_INTEGRITY, "%s: decoder kernel %lld at rate %lld does not multiply the length exactly; their difference must be even and not negative", where,
                            (long long)kernel, (long long)rate);
        hop *= rate;
        if (hop > HOP_LIMIT) return h3_error(H3_INTEGRITY, "%s: the decoder_rates multiply to more than %d samples a latent", where, HOP_LIMIT);
    }
    if (config->decoder_dim % ((int64_t)1 << config->stages) != 0)
        return h3_error(H3_INTEGRITY, "%s: decoder_dim %lld cannot be halved %lld times", where, (long long)config->decoder_dim, (long long)config->stages);
    return H3_OK;
}

static h3_status check_numbers(const h3_audio_config *config, const char *where)
{
    for (int64_t i = 0; i < config->branches; i++)
        if (config->branch_kernels[i] % 2 == 0)
            return h3_error(H3_INTEGRITY, "%s: resblock kernel %lld is even; only odd ones keep the length", where, (long long)config->branch_kernels[i]);
    for (int64_t i = 0; i < config->latent_channels; i++)
        if (!(config->latents_std[i] > 0)) return h3_error(H3_INTEGRITY, "%s: latents_std of channel %lld is not above 0", where, (long long)i);
    return H3_OK;
}

static h3_status read_fields(h3_audio_config *config, const cJSON *object, const char *where)
{
    int64_t ignored, ignored_list[H3_AUDIO_STAGES], kernel_count;
    H3_TRY(check_known(object, where));
    H3_TRY(h3_json_integer(&ignored, object, "encoder_dim", 1, CHANNEL_LIMIT, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&ignored, object, "num_attention_heads", 1, CHANNEL_LIMIT, where, H3_INTEGRITY));
    H3_TRY(read_integers(ignored_list, &ignored, object, "encoder_rates", H3_AUDIO_STAGES, RATE_LIMIT, where));
    H3_TRY(h3_json_integer(&config->latent_dim, object, "latent_dim", 1, CHANNEL_LIMIT, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&config->latent_channels, object, "latent_channels", 1, H3_AUDIO_LATENT_CHANNELS, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&config->decoder_dim, object, "decoder_dim", 1, CHANNEL_LIMIT, where, H3_INTEGRITY));
    H3_TRY(h3_json_integer(&config->sampling_rate, object, "sampling_rate", 1, 1 << 20, where, H3_INTEGRITY));
    H3_TRY(read_integers(config->rates, &config->stages, object, "decoder_rates", H3_AUDIO_STAGES, RATE_LIMIT, where));
    H3_TRY(read_integers(config->kernels, &kernel_count, object, "decoder_kernel_sizes", H3_AUDIO_STAGES, KERNEL_LIMIT, where));
    H3_TRY(read_integers(config->branch_kernels, &config->branches, object, "resblock_kernel_sizes", H3_AUDIO_BRANCHES, KERNEL_LIMIT, where));
    H3_TRY(read_dilations(config, object, where));
    H3_TRY(read_floats(config->latents_mean, config->latent_channels, object, "latents_mean", where));
    H3_TRY(read_floats(config->latents_std, config->latent_channels, object, "latents_std", where));
    H3_TRY(check_stages(config, kernel_count, where));
    return check_numbers(config, where);
}

h3_status h3_audio_config_parse(h3_audio_config *out, const char *text, size_t length, const char *where)
{
    cJSON *object;
    h3_audio_config config = {0};
    *out = config;
    H3_TRY(h3_json_parse(&object, text, length, where, H3_INTEGRITY));
    h3_status status = read_fields(&config, object, where);
    cJSON_Delete(object);
    if (status == H3_OK) *out = config;
    return status;
}

h3_status h3_audio_config_read(h3_audio_config *out, char sha256[H3_SHA256_HEX], const char *path)
{
    char *text;
    size_t size;
    *out = (h3_audio_config){0};
    H3_TRY(h3_file_read(&text, &size, path, CONFIG_LIMIT, H3_INTEGRITY));
    h3_status status = h3_audio_config_parse(out, text, size, path);
    if (status == H3_OK && sha256 != NULL) status = h3_sha256(sha256, text, size);
    free(text);
    return status;
}

/* Decimal doubles as released; each is rounded to float32. */
static const double RELEASED_MEAN[] = {
    -0.020211687488382354, 0.3876466479950502,   -0.04398279799186767, -0.28591514936373,    0.08179686214561671,  -0.35782641352446604, 0.040623809960919084, -0.01552534501956604,
    -0.223362481667332,    0.1821006842509091,   0.2941778783780663,   -0.07901167601970885, -0.056815072777201,   -0.3699028221860095,  -0.31616315591624855, 0.5905951377425391,
    -0.052139568068853864, 0.013673160263486295, -0.03691647864630577, 0.09732660653298163,  -0.3394662328788498,  -0.30685677538541667, -0.24504598907458763, -0.034698524462007344,
    0.02868032184767538,   -0.21217779266454084, -0.1678263169941987,  0.3221287889040614,   -0.1223055851554907,  0.4356604928128464,   -0.0502599202236253,  0.3979258376211797,
};
static const double RELEASED_STD[] = {
    1.6895524230479284, 2.76263727217653,   1.7945344281264435, 1.6801681847309828, 1.6390226546605453, 2.7788298348882177, 1.7659090095747236, 1.6199757612137327,
    2.6336525640336896, 1.8539356672817833, 2.5056497896915633, 1.811019237886178,  1.9579657790720237, 1.6685498243529284, 1.4922469314453364, 3.298670198067373,
    1.9491804496832168, 1.8720003270431442, 1.8334080103291832, 1.6488070416529093, 1.6176957696319716, 1.9131449234774398, 1.5695245398428617, 1.6943659940415912,
    1.8318420762504692, 1.5540637421583379, 1.9344930328968526, 1.599198216109855,  1.718045989838149,  1.6307219190837705, 1.8661226051202384, 1.5613768203168363,
};

void h3_audio_config_released(h3_audio_config *out)
{
    *out = (h3_audio_config){
        .latent_channels = 32,
        .latent_dim = 2048,
        .decoder_dim = 1024,
        .sampling_rate = 32000,
        .stages = 7,
        .rates = {5, 5, 2, 2, 2, 2, 2},
        .kernels = {9, 9, 4, 4, 4, 4, 4},
        .branches = 3,
        .branch_kernels = {3, 7, 11},
        .dilation_count = {3, 3, 3},
        .dilations = {{1, 3, 5}, {1, 3, 5}, {1, 3, 5}},
    };
    for (int64_t c = 0; c < out->latent_channels; c++) {
        out->latents_mean[c] = (float)RELEASED_MEAN[c];
        out->latents_std[c] = (float)RELEASED_STD[c];
    }
}

int64_t h3_audio_hop(const h3_audio_config *config)
{
    int64_t hop = 1;
    for (int64_t i = 0; i < config->stages; i++) hop *= config->rates[i];
    return hop;
}

int64_t h3_audio_stage_channels(const h3_audio_config *config, int64_t stage) { return config->decoder_dim >> (stage + 1); }

h3_status h3_audio_denormalise(h3_tensor *out, const h3_audio_config *config, const h3_tensor *rows, int64_t channels)
{
    h3_tensor z;
    int64_t width = config->latent_channels;
    *out = (h3_tensor){0};
    if (rows->data == NULL || rows->dtype != H3_F32 || rows->rank != 2 || rows->shape[1] != width || channels < 1 || rows->shape[0] < 1 || rows->shape[0] % channels != 0)
        return h3_error(H3_INTEGRITY, "the audio rows must be float32 [%lld * latents, %lld]; check which tensor was passed", (long long)channels, (long long)width);
    int64_t length = rows->shape[0] / channels;
    H3_TRY(h3_tensor_new(&z, H3_F32, 3, H3_SHAPE(channels, width, length)));
    const float *from = rows->data;
    float *to = z.data;
    for (int64_t row = 0; row < rows->shape[0]; row++)
        for (int64_t c = 0; c < width; c++) {
            float scaled = from[row * width + c] * config->latents_std[c], value = scaled + config->latents_mean[c];
            if (!isfinite(value)) {
                h3_tensor_free(&z);
                return h3_error(H3_FAILED, "audio row %lld, channel %lld is no finite number; the generation before it failed", (long long)row, (long long)c);
            }
            to[(row / length * width + c) * length + row % length] = value;
        }
    *out = z;
    return H3_OK;
}
