/* The run's own copy of the generation contract. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "qualify/generation_store.h"
#include "store/publish.h"

enum { COPY_LIMIT = 1 << 20 };

/* The path of the plan's contract; "" for a plan without, or with one that cannot be named. */
static h3_status contract_path(char out[H3_PATH_MAX], const h3_plan *plan)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(plan->generation, "contract");
    out[0] = 0;
    return cJSON_IsString(name) ? h3_plan_path(out, plan, name->valuestring) : H3_OK;
}

static h3_status publish_copy(h3_run *run, const char *text, size_t size)
{
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    H3_TRY(h3_run_place(path, run->folder, H3_CONTRACT_COPY));
    H3_TRY(h3_publish(path, text, size));
    H3_TRY(h3_sha256(sha256, text, size));
    return h3_run_output(run, H3_CONTRACT_COPY, (int64_t)size, sha256);
}

h3_status h3_contract_keep(const h3_plan *plan, h3_run *run)
{
    char path[H3_PATH_MAX], *text;
    size_t size;
    H3_TRY(contract_path(path, plan));
    if (path[0] == 0) return H3_OK;
    H3_TRY(h3_file_read(&text, &size, path, COPY_LIMIT, H3_USAGE));
    h3_status status = publish_copy(run, text, size);
    free(text);
    return status;
}

h3_status h3_contract_expect(const h3_plan *plan, const char *run_folder)
{
    char path[H3_PATH_MAX], copy[H3_PATH_MAX], *mine, *kept;
    size_t size, kept_size;
    H3_TRY(contract_path(path, plan));
    H3_TRY(h3_path(copy, "%s/" H3_CONTRACT_COPY, run_folder));
    if (path[0] == 0 || access(copy, F_OK) != 0) return H3_OK;
    if (h3_file_read(&mine, &size, path, COPY_LIMIT, H3_USAGE) != H3_OK) return H3_OK; /* whoever reads it says so */
    h3_status status = h3_run_locate(copy, run_folder, H3_CONTRACT_COPY);
    if (status == H3_OK) status = h3_file_read(&kept, &kept_size, copy, COPY_LIMIT, H3_INTEGRITY);
    if (status == H3_OK) {
        if (size != kept_size || memcmp(mine, kept, size) != 0)
            status = h3_error(H3_INTEGRITY,
                              "%s is another contract than %s, with which the run began; use that one, or start a new run", path,
                              copy);
        free(kept);
    }
    free(mine);
    return status;
}
