#include "qualify/generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { VAE_STEP = 16, POINTS_LIMIT = 100000 };

/* Moves both values into a new entry. */
static h3_status add_override(h3_generation *generation, const char *field, cJSON *contract, cJSON *plan)
{
    cJSON *entry = cJSON_CreateObject();
    if (entry != NULL && contract != NULL && plan != NULL && cJSON_AddStringToObject(entry, "field", field) != NULL &&
        cJSON_AddItemToArray(generation->overrides, entry)) {
        cJSON_AddItemToObject(entry, "contract", contract);
        cJSON_AddItemToObject(entry, "plan", plan);
        return H3_OK;
    }
    cJSON_Delete(entry);
    cJSON_Delete(contract);
    cJSON_Delete(plan);
    return h3_error(H3_ENVIRONMENT, "out of memory for the list of overrides");
}

static h3_status override_number(h3_generation *generation, const char *field, double contract, double plan)
{
    return contract == plan ? H3_OK : add_override(generation, field, cJSON_CreateNumber(contract), cJSON_CreateNumber(plan));
}

static cJSON *seed_list(const int64_t *seeds, size_t count)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < count; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber((double)seeds[i]));
    return list;
}

static cJSON *anchor_list(int32_t anchors)
{
    cJSON *list = cJSON_CreateArray();
    if (anchors & H3_ANCHOR_FIRST) cJSON_AddItemToArray(list, cJSON_CreateString("first"));
    if (anchors & H3_ANCHOR_LAST) cJSON_AddItemToArray(list, cJSON_CreateString("last"));
    return list;
}

static h3_status compare_seeds(h3_generation *g)
{
    const h3_contract *contract = &g->contract;
    if (g->seed_count == contract->seed_count && memcmp(g->seeds, contract->seeds, g->seed_count * sizeof *g->seeds) == 0)
        return H3_OK;
    return add_override(g, "seeds", seed_list(contract->seeds, contract->seed_count), seed_list(g->seeds, g->seed_count));
}

/* The plan speaks of latents, the contract of pixels and frames. */
static h3_status compare_geometry(h3_generation *g)
{
    const h3_contract *contract = &g->contract;
    H3_TRY(override_number(g, "latent_frames", (double)h3_latent_frames(contract->frames), (double)g->layout.frames));
    H3_TRY(override_number(g, "latent_height", (double)(contract->height / VAE_STEP), (double)g->layout.height));
    H3_TRY(override_number(g, "latent_width", (double)(contract->width / VAE_STEP), (double)g->layout.width));
    H3_TRY(override_number(g, "audio_latents", (double)h3_audio_latents(contract->frames), (double)g->layout.audio));
    if (g->layout.anchors == contract->anchors) return H3_OK;
    return add_override(g, "anchors", anchor_list(contract->anchors), anchor_list(g->layout.anchors));
}

static cJSON *hash_or_null(const char *sha256) { return sha256[0] != 0 ? cJSON_CreateString(sha256) : cJSON_CreateNull(); }

/* A file fills what the contract leaves open; stand-ins, or another file than the contract names, are an override. */
static h3_status compare_conditioning(h3_generation *g)
{
    char words[64];
    if (g->conditioning_file[0] != 0) {
        if (g->contract.conditioning_sha256[0] == 0 || strcmp(g->contract.conditioning_sha256, g->conditioning_sha256) == 0)
            return H3_OK;
        return add_override(g, "conditioning", hash_or_null(g->contract.conditioning_sha256),
                            cJSON_CreateString(g->conditioning_sha256));
    }
    snprintf(words, sizeof words, "synthetic h3synth-v1 seed %llu", (unsigned long long)g->conditioning_seed);
    return add_override(g, "conditioning", hash_or_null(g->contract.conditioning_sha256), cJSON_CreateString(words));
}

static h3_status compare_acceptance(h3_generation *g)
{
    for (int i = 0; i < H3_LIMIT_COUNT; i++) {
        char field[64];
        snprintf(field, sizeof field, "acceptance.%s", h3_limits[i].name);
        H3_TRY(override_number(g, field, g->contract.acceptance.limit[i], g->acceptance.limit[i]));
    }
    return H3_OK;
}

static cJSON *contract_model(const h3_contract *contract)
{
    char name[256];
    snprintf(name, sizeof name, "%s@%s %s", contract->repository, contract->revision, contract->variant);
    return cJSON_CreateString(name);
}

static h3_status compare_model(h3_generation *g, const h3_plan *plan)
{
    char words[64];
    if (!plan->synthetic) return H3_OK;
    snprintf(words, sizeof words, "synthetic h3synth-v1 seed %llu", (unsigned long long)plan->weight_seed);
    return add_override(g, "model", contract_model(&g->contract), cJSON_CreateString(words));
}

h3_status h3_generation_model(h3_generation *generation, const cJSON *identity)
{
    const h3_contract *contract = &generation->contract;
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(identity, "kind");
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(identity, "config_sha256"),
                *index = cJSON_GetObjectItemCaseSensitive(identity, "index_sha256");
    const char *config_sha256 = cJSON_IsString(config) ? config->valuestring : "none",
               *index_sha256 = cJSON_IsString(index) ? index->valuestring : "none";
    char words[192];
    if (!cJSON_IsString(kind) || strcmp(kind->valuestring, "folder") != 0) return H3_OK;
    if (strcmp(config_sha256, contract->config_sha256) == 0 && strcmp(index_sha256, contract->index_sha256) == 0) return H3_OK;
    snprintf(words, sizeof words, "folder config %s index %s", config_sha256, index_sha256);
    return add_override(generation, "model", contract_model(contract), cJSON_CreateString(words));
}

static h3_status read_synthetic(h3_generation *g, const cJSON *conditioning, const char *where)
{
    const cJSON *synthetic;
    int64_t seed;
    H3_TRY(h3_json_only_keys(conditioning, (const char *const[]){"synthetic", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_object(&synthetic, conditioning, "synthetic", where, H3_USAGE));
    H3_TRY(h3_json_only_keys(synthetic, (const char *const[]){"seed", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_integer(&seed, synthetic, "seed", 0, INT64_MAX, where, H3_USAGE));
    g->conditioning_seed = (uint64_t)seed;
    return H3_OK;
}

static h3_status read_conditioning(h3_generation *g, const h3_plan *plan, const char *where)
{
    const cJSON *conditioning;
    const char *file, *sha256;
    H3_TRY(h3_json_object(&conditioning, plan->generation, "conditioning", where, H3_USAGE));
    if (cJSON_GetObjectItemCaseSensitive(conditioning, "synthetic") != NULL) return read_synthetic(g, conditioning, where);
    H3_TRY(h3_json_only_keys(conditioning, (const char *const[]){"file", "sha256", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_string(&file, conditioning, "file", where, H3_USAGE));
    H3_TRY(h3_json_string(&sha256, conditioning, "sha256", where, H3_USAGE));
    if (file[0] == 0) return h3_error(H3_USAGE, "%s: the conditioning file has no name", where);
    if (strlen(sha256) != H3_SHA256_HEX - 1 || strspn(sha256, "0123456789abcdef") != H3_SHA256_HEX - 1)
        return h3_error(H3_USAGE, "%s: the conditioning's sha256 must be a SHA-256 in lower-case hex", where);
    memcpy(g->conditioning_sha256, sha256, H3_SHA256_HEX);
    return h3_plan_path(g->conditioning_file, plan, file);
}

/* What the plan leaves unsaid is the contract's. */
static h3_status read_sampling(h3_generation *g, const h3_plan *plan, const char *where)
{
    const cJSON *seeds = cJSON_GetObjectItemCaseSensitive(plan->generation, "seeds");
    g->points = g->contract.points;
    g->video_shift = g->contract.video_shift;
    g->audio_shift = g->contract.audio_shift;
    g->condition_time = g->contract.condition_time;
    g->seed_count = g->contract.seed_count;
    memcpy(g->seeds, g->contract.seeds, sizeof g->seeds);
    if (cJSON_GetObjectItemCaseSensitive(plan->generation, "points") != NULL)
        H3_TRY(h3_json_integer(&g->points, plan->generation, "points", 2, POINTS_LIMIT, where, H3_USAGE));
    return seeds == NULL ? H3_OK : h3_seeds_read(g->seeds, &g->seed_count, seeds, where);
}

static h3_status read_generation(h3_generation *g, const h3_plan *plan, const char *where)
{
    static const char *const layout_keys[] = {"text", "frames", "h", "w", "audio", "anchors", "vision_rows", NULL};
    const char *contract;
    const cJSON *layout;
    char path[H3_PATH_MAX];
    H3_TRY(h3_json_only_keys(
        plan->generation, (const char *const[]){"contract", "layout", "points", "seeds", "conditioning", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_string(&contract, plan->generation, "contract", where, H3_USAGE));
    H3_TRY(h3_plan_path(path, plan, contract));
    h3_status status = h3_contract_read(&g->contract, path);
    if (status != H3_OK) return h3_error_context(status, "%s: contract", where);
    H3_TRY(h3_json_object(&layout, plan->generation, "layout", where, H3_USAGE));
    H3_TRY(h3_json_only_keys(layout, layout_keys, where, H3_USAGE));
    H3_TRY(h3_plan_layout_args(&g->layout, layout, where));
    H3_TRY(read_sampling(g, plan, where));
    H3_TRY(read_conditioning(g, plan, where));
    H3_TRY(h3_decoders_read(&g->decoders, plan));
    g->acceptance = g->contract.acceptance;
    return plan->acceptance == NULL ? H3_OK : h3_acceptance_read(&g->acceptance, plan->acceptance, where);
}

static h3_status list_overrides(h3_generation *g, const h3_plan *plan)
{
    g->overrides = cJSON_CreateArray();
    if (g->overrides == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for the list of overrides");
    H3_TRY(compare_model(g, plan));
    H3_TRY(compare_seeds(g));
    H3_TRY(override_number(g, "points", (double)g->contract.points, (double)g->points));
    H3_TRY(compare_geometry(g));
    H3_TRY(compare_conditioning(g));
    return compare_acceptance(g);
}

h3_status h3_generation_read(h3_generation *out, const h3_plan *plan)
{
    char where[H3_PATH_MAX + 16];
    memset(out, 0, sizeof *out);
    if (plan->generation == NULL)
        return h3_error(H3_USAGE, "%s has no \"generation\"; add it, or leave the generation stages out", plan->path);
    snprintf(where, sizeof where, "%s: generation", plan->path);
    h3_status status = read_generation(out, plan, where);
    if (status == H3_OK) status = list_overrides(out, plan);
    if (status != H3_OK) h3_generation_free(out);
    return status;
}

void h3_generation_free(h3_generation *generation)
{
    cJSON_Delete(generation->overrides);
    memset(generation, 0, sizeof *generation);
}
