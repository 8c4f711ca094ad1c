#include "graph/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <fenv.h>
#endif

#include "base/json.h"
#include "graph/device.h"

uint64_t h3_fp_state(void)
{
#if defined(__x86_64__)
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return ((uint64_t)x87 << 32) | (_mm_getcsr() & ~0x3fu); /* the low six bits are sticky exception flags, not control */
#else
    return (uint64_t)fegetround();
#endif
}

void h3_fp_restore(uint64_t state)
{
#if defined(__x86_64__)
    uint16_t x87 = (uint16_t)(state >> 32);
    __asm__ volatile("fldcw %0" : : "m"(x87));
    _mm_setcsr((uint32_t)state);
#else
    fesetround((int)state);
#endif
}

/* Looks for `name` in the folders of $H3_LIB, separated by ':'. Leaves the last path tried in `out`. */
static h3_status search(char out[H3_PATH_MAX], const char *folders, const char *name, int *found)
{
    *found = 0;
    while (*folders != 0 && !*found) {
        size_t length = strcspn(folders, ":");
        if (length > 0) {
            H3_TRY(h3_path(out, "%.*s/%s", (int)length, folders, name));
            *found = access(out, F_OK) == 0;
        }
        folders += length + (folders[length] == ':');
    }
    return H3_OK;
}

static h3_status resolve(char out[H3_PATH_MAX], const char *path)
{
    char program[H3_PATH_MAX];
    const char *folders = getenv("H3_LIB");
    int found = 0;
    if (strchr(path, '/') != NULL) return h3_path(out, "%s", path);
    if (folders != NULL) H3_TRY(search(out, folders, path, &found));
    if (found) return H3_OK;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return h3_error(H3_ENVIRONMENT, "cannot find this program's own folder; set H3_LIB to the folder of the operator libraries");
    program[length] = 0;
    char *slash = strrchr(program, '/');
    if (slash != NULL) *slash = 0;
    return h3_path(out, "%s/../lib/h3/%s", program, path);
}

static h3_status check_operator(const h3_operator *op, const char *path, uint32_t index)
{
    if (op->node == NULL || op->name == NULL || op->row == NULL || op->label == NULL || op->contract == NULL || op->plan == NULL || op->forward == NULL || op->node[0] == 0 ||
        op->name[0] == 0 || op->row[0] == 0 || op->contract[0] == 0)
        return h3_error(H3_USAGE, "operator library %s: operator %u is incomplete; fill every field of h3_operator", path, index);
    if (strcmp(op->label, "row") != 0 && strcmp(op->label, "interim") != 0 && strcmp(op->label, "reference") != 0)
        return h3_error(H3_USAGE, "operator library %s: operator %s has label \"%s\"; use row, interim or reference", path, op->name, op->label);
    return H3_OK;
}

static h3_status check_table(const h3_operator_library *table, const char *path)
{
    if (table == NULL) return h3_error(H3_USAGE, "operator library %s: its entry point returned nothing", path);
    if (table->interface_version != H3_OPERATOR_INTERFACE || table->size != sizeof *table)
        return h3_error(H3_USAGE, "operator library %s has interface version %u, this program has %u; rebuild it with this include/h3/operator.h", path,
                        table->interface_version, H3_OPERATOR_INTERFACE);
    if (table->name == NULL || table->revision == NULL || table->compiler == NULL || table->flags == NULL || table->architectures == NULL ||
        (table->operator_count > 0 && table->operators == NULL) || table->operator_count > 4096)
        return h3_error(H3_USAGE, "operator library %s: malformed table; fill every field of h3_operator_library", path);
    for (uint32_t i = 0; i < table->operator_count; i++) H3_TRY(check_operator(&table->operators[i], path, i));
    if ((table->build & H3_BUILD_FAST_MATH) != 0 || strstr(table->flags, "fast-math") != NULL || strstr(table->flags, "use_fast_math") != NULL)
        return h3_error(H3_FAILED, "operator library %s was built with fast math; rebuild it without", path);
    return H3_OK;
}

static h3_status load(h3_library *out)
{
    uint64_t before = h3_fp_state();
    /* NODELETE: a library's OpenMP threads outlive the last use of it. */
    out->handle = dlopen(out->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const char *problem = out->handle == NULL ? dlerror() : NULL;
    uint64_t after = h3_fp_state();
    h3_fp_restore(before);
    if (out->handle == NULL) return h3_error(H3_FAILED, "operator library is unavailable: %s", problem ? problem : out->path);
    if (after != before)
        return h3_error(H3_FAILED, "operator library %s changed the floating-point control state at load (fast math links such a start-up); rebuild it without",
                        out->path);
    void *symbol = dlsym(out->handle, H3_OPERATOR_LIBRARY_SYMBOL);
    if (symbol == NULL) return h3_error(H3_USAGE, "operator library %s exports no %s", out->path, H3_OPERATOR_LIBRARY_SYMBOL);
    h3_operator_library_get_fn get;
    memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from object to function pointer */
    out->table = get();
    after = h3_fp_state();
    h3_fp_restore(before);
    if (after != before) return h3_error(H3_FAILED, "operator library %s changed the floating-point control state in its entry point", out->path);
    return check_table(out->table, out->path);
}

h3_status h3_library_open(h3_library *out, const char *path)
{
    memset(out, 0, sizeof *out);
    H3_TRY(resolve(out->path, path));
    if (access(out->path, R_OK) != 0) return h3_error(H3_FAILED, "operator library %s is unavailable; build it, or set H3_LIB to its folder", out->path);
    H3_TRY(h3_sha256_file(out->sha256, out->path, NULL, H3_FAILED));
    h3_status status = load(out);
    if (status != H3_OK) h3_library_close(out);
    return status;
}

void h3_library_close(h3_library *library)
{
    uint64_t before = h3_fp_state();
    if (library->handle != NULL) dlclose(library->handle);
    h3_fp_restore(before);
    library->handle = NULL;
    library->table = NULL;
}

h3_status h3_library_find(const h3_operator **out, const h3_library *library, const char *node, const char *name)
{
    int serves = 0;
    for (uint32_t i = 0; i < library->table->operator_count; i++) {
        const h3_operator *op = &library->table->operators[i];
        if (strcmp(op->node, node) != 0) continue;
        serves = 1;
        if (name != NULL && strcmp(op->name, name) != 0) continue;
        *out = op;
        return H3_OK;
    }
    if (serves) return h3_error(H3_USAGE, "operator library %s has no operator \"%s\" for node %s; see the plan's bindings", library->path, name, node);
    return h3_error(H3_FAILED, "node %s is unavailable: operator library %s does not have it (a fast-math build leaves the bitwise kernels out)", node,
                    library->path);
}

h3_status h3_library_identity(const h3_library *library, cJSON **out)
{
    const h3_operator_library *table = library->table;
    cJSON *json = cJSON_CreateObject();
    if (json == NULL) return h3_error(H3_ENVIRONMENT, "out of memory for a build identity");
    cJSON_AddStringToObject(json, "name", table->name);
    cJSON_AddStringToObject(json, "revision", table->revision);
    cJSON_AddBoolToObject(json, "dirty", (table->build & H3_BUILD_DIRTY) != 0);
    cJSON_AddStringToObject(json, "compiler", table->compiler);
    cJSON_AddStringToObject(json, "flags", table->flags);
    cJSON_AddStringToObject(json, "architectures", table->architectures);
    cJSON_AddStringToObject(json, "sha256", library->sha256);
    *out = json;
    return H3_OK;
}

/* Opens a library once, however many nodes name it. */
static h3_status intern(h3_bindings *bindings, const char *path, int32_t *index)
{
    char resolved[H3_PATH_MAX];
    H3_TRY(resolve(resolved, path));
    for (*index = 0; *index < bindings->library_count; (*index)++)
        if (strcmp(bindings->libraries[*index].path, resolved) == 0) return H3_OK;
    if (bindings->library_count == H3_MAX_LIBRARIES) return h3_error(H3_USAGE, "more than %d operator libraries in one set of bindings", H3_MAX_LIBRARIES);
    H3_TRY(h3_library_open(&bindings->libraries[bindings->library_count], path));
    bindings->library_count++;
    return H3_OK;
}

static h3_status read_entry(const char **library, const char **name, const cJSON *entry, const char *where)
{
    *name = NULL;
    H3_TRY(h3_json_only_keys(entry, (const char *const[]){"library", "operator", NULL}, where, H3_USAGE));
    H3_TRY(h3_json_string(library, entry, "library", where, H3_USAGE));
    if (**library == 0) return h3_error(H3_USAGE, "%s: a binding's library has no name", where);
    if (cJSON_GetObjectItemCaseSensitive(entry, "operator") != NULL) H3_TRY(h3_json_string(name, entry, "operator", where, H3_USAGE));
    return H3_OK;
}

/* The entry of a node, or the one for the rest; NULL when there is neither. */
static const cJSON *entry_of(const cJSON *json, int32_t node)
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(json, h3_nodes[node].name);
    return entry != NULL ? entry : cJSON_GetObjectItemCaseSensitive(json, "*");
}

h3_status h3_bindings_check(const cJSON *json, const char *where)
{
    const char *library, *name;
    const cJSON *item;
    if (!cJSON_IsObject(json)) return h3_error(H3_USAGE, "%s: bindings must be an object {node: {library, operator}}", where);
    cJSON_ArrayForEach(item, json) {
        if (strcmp(item->string, "*") != 0 && h3_node_find(item->string) < 0)
            return h3_error(H3_USAGE, "%s: bindings name \"%.80s\", which is no node of a block; use one of docs/plan.md, or \"*\"", where, item->string);
        if (!cJSON_IsObject(item))
            return h3_error(H3_USAGE, "%s: the binding of \"%s\" must be {\"library\": FILE, \"operator\": NAME}", where, item->string);
        H3_TRY(read_entry(&library, &name, item, where));
    }
    for (int32_t node = 0; node < H3_NODE_COUNT; node++)
        if (entry_of(json, node) == NULL) return h3_error(H3_USAGE, "%s: no binding for node %s; name it, or add \"*\"", where, h3_nodes[node].name);
    return H3_OK;
}

static h3_status bind(h3_bindings *bindings, int32_t node, const cJSON *entry, const char *where)
{
    const char *library, *name;
    H3_TRY(read_entry(&library, &name, entry, where));
    H3_TRY(intern(bindings, library, &bindings->library_of[node]));
    return h3_library_find(&bindings->operators[node], &bindings->libraries[bindings->library_of[node]], h3_nodes[node].name, name);
}

/* Nodes whose operator is unavailable, and why the first of them is. */
typedef struct unavailable {
    char reason[512], nodes[320];
    const cJSON *entry; /* the binding that failed last: its library is not tried again */
} unavailable;

static void note_unavailable(unavailable *missing, int32_t node, const cJSON *entry)
{
    size_t used = strlen(missing->nodes);
    if (missing->reason[0] == 0) snprintf(missing->reason, sizeof missing->reason, "%.500s", h3_error_text());
    snprintf(missing->nodes + used, sizeof missing->nodes - used, "%s%s", used > 0 ? ", " : "", h3_nodes[node].name);
    missing->entry = entry;
}

static h3_status open_all(h3_bindings *out, const cJSON *json, const char *where, int available)
{
    unavailable missing = {.entry = NULL};
    memset(out, 0, sizeof *out);
    H3_TRY(h3_bindings_check(json, where));
    for (int32_t node = 0; node < H3_NODE_COUNT; node++) {
        const cJSON *entry = entry_of(json, node);
        int refused = entry == missing.entry;
        h3_status status = refused ? H3_FAILED : bind(out, node, entry, where);
        if (status == H3_FAILED && available) {
            refused = refused || out->library_of[node] == out->library_count; /* else it opened and lacks this node */
            out->operators[node] = NULL;
            note_unavailable(&missing, node, refused ? entry : NULL);
        } else {
            H3_TRY(status);
        }
    }
    if (missing.nodes[0] != 0) h3_error(H3_FAILED, "%s; unavailable nodes: %s", missing.reason, missing.nodes);
    return H3_OK;
}

h3_status h3_bindings_open(h3_bindings *out, const cJSON *json, const char *where)
{
    h3_status status = open_all(out, json, where, 0);
    if (status != H3_OK) h3_bindings_close(out);
    return status;
}

h3_status h3_bindings_open_available(h3_bindings *out, const cJSON *json, const char *where)
{
    h3_status status = open_all(out, json, where, 1);
    if (status != H3_OK) h3_bindings_close(out);
    return status;
}

void h3_text_for_device(char *text, const char *device)
{
    static const char placeholder[] = "{device}"; /* longer than any device's name, so the text never grows */
    size_t length = strlen(device), gone = sizeof placeholder - 1;
    for (char *place = text; (place = strstr(place, placeholder)) != NULL && length < gone; place += length) {
        memcpy(place, device, length);
        memmove(place + length, place + gone, strlen(place + gone) + 1);
    }
}

void h3_bindings_for_device(const cJSON *json, const char *device)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json) {
        const cJSON *library = cJSON_GetObjectItemCaseSensitive(item, "library");
        if (cJSON_IsString(library)) h3_text_for_device(library->valuestring, device);
    }
}

h3_status h3_library_require(const h3_library *library, int32_t device)
{
    if (library->table->device == device) return H3_OK;
    return h3_error(H3_USAGE, "operator library %s is for %s, but this runs on %s; choose another --device, or write {device} into its name in the plan",
                    library->path, h3_device_name(library->table->device), h3_device_name(device));
}

h3_status h3_bindings_require(const h3_bindings *bindings, int32_t device)
{
    for (int32_t i = 0; i < bindings->library_count; i++) H3_TRY(h3_library_require(&bindings->libraries[i], device));
    return H3_OK;
}

h3_status h3_bindings_single(h3_bindings *out, const char *library)
{
    cJSON *json = cJSON_CreateObject();
    cJSON *entry = cJSON_AddObjectToObject(json, "*");
    cJSON_AddStringToObject(entry, "library", library);
    h3_status status = json == NULL || entry == NULL ? h3_error(H3_ENVIRONMENT, "out of memory for bindings") : h3_bindings_open(out, json, library);
    cJSON_Delete(json);
    return status;
}

void h3_bindings_close(h3_bindings *bindings)
{
    for (int32_t i = 0; i < bindings->library_count; i++) h3_library_close(&bindings->libraries[i]);
    memset(bindings, 0, sizeof *bindings);
}
