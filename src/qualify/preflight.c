#include "qualify/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/json.h"
#include "graph/nodes.h"

/* Elements of all node outputs of one packed row in one block. */
static int64_t row_elements(const h3_config *config)
{
    int64_t total = 0;
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        if (node != H3_NODE_ADALN) total += h3_node_width(node, config);
    return total;
}

static h3_status block_parameters(const h3_config *config, size_t *elements)
{
    h3_inventory inventory;
    H3_TRY(h3_inventory_new(&inventory, config));
    *elements = 0;
    for (size_t i = 0; i < inventory.count; i++) {
        const h3_parameter *parameter = &inventory.items[i];
        *elements += (size_t)parameter->shape[0] * (size_t)(parameter->rank == 2 ? parameter->shape[1] : 1);
    }
    h3_inventory_free(&inventory);
    return H3_OK;
}

h3_status h3_reference_bytes(const h3_plan *plan, const h3_config *config, size_t *bytes)
{
    enum { BYTES_BOTH = 4 + 2 }; /* FP32 and BF16 */
    size_t parameters;
    H3_TRY(block_parameters(config, &parameters));
    *bytes = 0;
    for (size_t i = 0; i < plan->layout_count; i++) {
        h3_plan_inputs inputs;
        size_t elements;
        H3_TRY(h3_plan_inputs_new(&inputs, &plan->layouts[i], config));
        int64_t rows = inputs.layout.rows;
        h3_plan_inputs_free(&inputs);
        H3_TRY(h3_size_multiply((size_t)rows, (size_t)(2 * row_elements(config)), &elements)); /* outputs and gradients */
        H3_TRY(h3_size_multiply(elements, (size_t)config->num_layers, &elements));
        *bytes += (elements + parameters) * BYTES_BOTH;
    }
    return H3_OK;
}

static h3_status check_disk(const char *folder, size_t needed)
{
    struct statvfs fs;
    if (statvfs(folder, &fs) != 0) return h3_error(H3_ENVIRONMENT, "%s: %s; choose another run folder", folder, strerror(errno));
    size_t available = (size_t)fs.f_bavail * fs.f_frsize;
    if (available < needed)
        return h3_error(H3_ENVIRONMENT, "%s: this plan needs about %zu MB of disk, %zu MB are free; free some or choose another run folder", folder, needed >> 20, available >> 20);
    return H3_OK;
}

/* One pass holds its parameters and its artifacts of one precision at a time, spread over the ranks; a tenth more for the rest. */
static h3_status check_memory(size_t artifacts)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page <= 0) return H3_OK;
    size_t total = (size_t)pages * (size_t)page, needed = artifacts + artifacts / 10;
    if (total < needed)
        return h3_error(H3_ENVIRONMENT, "this plan needs about %zu MB of memory, this machine has %zu MB; use fewer or smaller layouts", needed >> 20, total >> 20);
    return H3_OK;
}

static h3_status check_writable(const char *folder)
{
    char path[H3_PATH_MAX];
    H3_TRY(h3_path(path, "%s/.tmp-preflight-%ld", folder, (long)getpid()));
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return h3_error(H3_ENVIRONMENT, "%s: cannot write (%s); choose another run folder", folder, strerror(errno));
    close(file);
    unlink(path);
    return H3_OK;
}

/* Files that generation will read are looked for now, hours before they are needed. */
static h3_status check_generation(const h3_plan *plan)
{
    const char *name;
    char path[H3_PATH_MAX];
    if (plan->generation == NULL) return H3_OK;
    H3_TRY(h3_json_string(&name, plan->generation, "contract", plan->path, H3_USAGE));
    H3_TRY(h3_plan_path(path, plan, name));
    if (access(path, R_OK) != 0) return h3_error(H3_USAGE, "%s: the generation contract %s cannot be read (%s)", plan->path, path, strerror(errno));
    const cJSON *conditioning = cJSON_GetObjectItemCaseSensitive(plan->generation, "conditioning");
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(conditioning, "file");
    if (!cJSON_IsString(file)) return H3_OK;
    H3_TRY(h3_plan_path(path, plan, file->valuestring));
    if (access(path, R_OK) != 0) return h3_error(H3_USAGE, "%s: the conditioning file %s cannot be read (%s)", plan->path, path, strerror(errno));
    return H3_OK;
}

h3_status h3_preflight(const h3_plan *plan, const h3_config *config, const char *run_folder)
{
    size_t bytes;
    H3_TRY(h3_reference_bytes(plan, config, &bytes));
    H3_TRY(check_writable(run_folder));
    H3_TRY(check_disk(run_folder, bytes));
    H3_TRY(check_memory(bytes));
    return check_generation(plan);
}
