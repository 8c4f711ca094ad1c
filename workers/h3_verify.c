/* Looks at a checkpoint, a run or an archive of one, and changes nothing. The last line is VALID or INVALID. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args.h"
#include "base/grouped.h"
#include "base/json.h"
#include "base/log.h"
#include "model/weights.h"
#include "qualify/run_check.h"
#include "report/report.h"
#include "store/bag.h"
#include "store/hash_list.h"

static const char help[] =
    "h3_verify - does every hash hold? Reads a checkpoint, a run, or an archive of one, and writes nothing\n"
    "\n"
    "  h3_verify checkpoint DIR [--hashes FILE]\n"
    "      opens the folder as strictly as a stage does and hashes every shard; links, as hub caches have them, are followed\n"
    "      --hashes FILE   what they should be: JSON {\"file\": \"sha256\"} or the output of sha256sum, names as in DIR; every "
    "file listed must be there\n"
    "                      with its hash, and every file of the checkpoint must be listed\n"
    "  h3_verify run DIR\n"
    "      every file that a stage of the run lists, every tensor in its artifacts, and that plan, manifest, thresholds, "
    "verdicts, figures and report\n"
    "      agree; a run that is not complete can be verified as far as it goes\n"
    "  h3_verify archive FILE [--key PUB]\n"
    "      an archive of scripts/archive_evidence.sh: every hash, nothing missing, nothing added; nothing is unpacked\n"
    "      --key PUB       it must be signed with the private half of this Ed25519 key (PEM)\n"
    "\n"
    "  last line: VALID or INVALID. VALID says that nothing has changed; whether the candidate passed is said on the line "
    "\"outcome\"\n"
    "  exit codes: 0 VALID, 2 usage, 3 INVALID, 4 environment\n"
    "  example: bin/h3_verify run evidence/demo\n";

static void say(const char *title, const char *text) { h3_say("%-10s %s", title, text); }

static const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

/* --- checkpoint --------------------------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return text != NULL ? text : "";
}

#define INDEX "diffusion_pytorch_model.safetensors.index.json"

/* The files of a checkpoint and their hashes, as the list that --hashes is compared with. */
static h3_status list_files(h3_hash_list *out, const cJSON *identity)
{
    const cJSON *shard;
    cJSON *files = cJSON_CreateObject();
    char *text = NULL;
    cJSON_AddStringToObject(files, "config.json", text_of(identity, "config_sha256"));
    if (text_of(identity, "index_sha256")[0] != 0) cJSON_AddStringToObject(files, INDEX, text_of(identity, "index_sha256"));
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(identity, "shards"))
        cJSON_AddStringToObject(files, text_of(shard, "path"), text_of(shard, "sha256"));
    h3_status status = h3_json_print(&text, files);
    cJSON_Delete(files);
    if (status == H3_OK) status = h3_hash_list_parse_json(out, text, strlen(text), "the checkpoint", H3_INTEGRITY);
    free(text);
    return status;
}

/* One listed file; those outside the checkpoint's own are hashed here. */
static h3_status check_listed(const h3_hash_entry *listed, const h3_hash_list *files, const char *folder, int64_t *bad)
{
    char path[H3_PATH_MAX], sha256[H3_SHA256_HEX];
    const h3_hash_entry *own = h3_hash_list_find(files, listed->path);
    if (own != NULL) {
        memcpy(sha256, own->sha256, sizeof sha256);
    } else {
        H3_TRY(h3_path(path, "%s/%s", folder, listed->path));
        h3_status status = h3_sha256_file_linked(sha256, path, NULL, H3_INTEGRITY);
        if (status == H3_INTEGRITY) {
            ++*bad;
            say("", h3_error_text());
            return H3_OK;
        }
        H3_TRY(status);
    }
    if (strcmp(sha256, listed->sha256) == 0) return H3_OK;
    ++*bad;
    h3_say("%-10s %s: SHA-256 differs (expected %.12s..., found %.12s...)", "", listed->path, listed->sha256, sha256);
    return H3_OK;
}

static h3_status compare_hashes(const h3_hash_list *files, const char *folder, const char *hashes)
{
    h3_hash_list expected;
    int64_t bad = 0;
    H3_TRY(h3_hash_list_read(&expected, hashes, H3_USAGE));
    h3_status status = H3_OK;
    for (size_t i = 0; i < expected.count && status == H3_OK; i++) status = check_listed(&expected.items[i], files, folder, &bad);
    for (size_t i = 0; i < files->count && status == H3_OK; i++) {
        if (h3_hash_list_find(&expected, files->items[i].path) != NULL) continue;
        bad++;
        h3_say("%-10s %s: not listed in %s", "", files->items[i].path, hashes);
    }
    if (status == H3_OK && bad == 0)
        h3_say("%-10s %zu of %zu files as listed in %s", "hashes", expected.count, expected.count, hashes);
    h3_hash_list_free(&expected);
    if (status == H3_OK && bad > 0)
        status = h3_error(H3_INTEGRITY, "%lld file%s of %s not as %s says; fetch %s again", (long long)bad, plural(bad), folder,
                          hashes, bad == 1 ? "it" : "them");
    return status;
}

static h3_status say_checkpoint(const cJSON *identity, const h3_weights *weights, const char *folder)
{
    const cJSON *shard;
    char *text, sha256[H3_SHA256_HEX], bytes[H3_GROUPED_SIZE], tensors[H3_GROUPED_SIZE];
    int64_t total = 0;
    say("config", text_of(identity, "config_sha256"));
    if (text_of(identity, "index_sha256")[0] != 0) say("index", text_of(identity, "index_sha256"));
    cJSON_ArrayForEach(shard, cJSON_GetObjectItemCaseSensitive(identity, "shards")) {
        int64_t size = (int64_t)cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(shard, "size"));
        total += size;
        h3_say("%-10s %s  %s  %s bytes", "shard", text_of(shard, "sha256"), text_of(shard, "path"), h3_grouped(bytes, size));
    }
    H3_TRY(h3_json_print(&text, identity));
    h3_status status = h3_sha256(sha256, text, strlen(text));
    free(text);
    H3_TRY(status);
    int shards = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(identity, "shards"));
    h3_say("%-10s %s  %d shard%s, %s tensors, %s bytes  identity %.8s", "VALID", folder, shards, plural(shards),
           h3_grouped(tensors, (int64_t)h3_weights_inventory(weights)->count), h3_grouped(bytes, total), sha256);
    return H3_OK;
}

static void on_hashed(void *user, int64_t done, int64_t total)
{
    enum { MEGABYTE = 1000000 };
    h3_progress *progress = user;
    if (progress->title == NULL) h3_progress_start(progress, "hash checkpoint", "MB", total / MEGABYTE);
    h3_progress_add(progress, done / MEGABYTE - progress->done);
    if (done == total) h3_progress_end(progress);
}

static h3_status check_opened(h3_weights *weights, const char *folder, const char *hashes)
{
    cJSON *identity;
    h3_progress progress = {0};
    const h3_watch watch = {on_hashed, &progress};
    h3_hash_list files;
    H3_TRY(h3_weights_identity(weights, &watch, &identity));
    h3_status status = list_files(&files, identity);
    if (status == H3_OK && hashes != NULL) status = compare_hashes(&files, folder, hashes);
    if (status == H3_OK) status = say_checkpoint(identity, weights, folder);
    h3_hash_list_free(&files);
    cJSON_Delete(identity);
    return status;
}

static h3_status need_kind(const char *path, int folder)
{
    struct stat info;
    if (stat(path, &info) == 0 && (folder ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode))) return H3_OK;
    return h3_error(H3_USAGE, "%s is no %s; check the path", path, folder ? "folder" : "file");
}

static h3_status verify_checkpoint(const h3_args *args, const char *folder)
{
    h3_weights *weights;
    H3_TRY(need_kind(folder, 1));
    H3_TRY(h3_weights_open(&weights, folder));
    h3_status status = check_opened(weights, folder, args->hashes);
    h3_weights_free(weights);
    return status;
}

/* --- run ---------------------------------------------------------------------------------------------------------- */

enum { LINES_SHOWN = 10 };

static void on_damaged(void *user, const char *line)
{
    int64_t *lines = user;
    if (++*lines <= LINES_SHOWN) say("", line);
}

static void say_stages(const h3_run_view *view)
{
    char line[512] = "";
    size_t used = 0;
    for (int i = 0; i < H3_RUN_STAGES; i++) {
        if (!view->stages[i].present) continue;
        int length = snprintf(line + used, sizeof line - used, "%s%s %s", used > 0 ? ", " : "", h3_run_stage_name(i),
                              view->stages[i].verdict);
        used += length > 0 ? (size_t)length : 0;
    }
    say("stages", line);
}

static h3_status say_run(const h3_run_check *check, const char *folder)
{
    h3_report report;
    char files[H3_GROUPED_SIZE], tensors[H3_GROUPED_SIZE], bounds[H3_GROUPED_SIZE], checks[H3_GROUPED_SIZE];
    h3_say("%-10s %s  %s", "plan", check->plan.name, check->view.plan_sha256);
    say_stages(&check->view);
    h3_say("%-10s %s of %s good", "files", h3_grouped(files, check->good), files);
    h3_say("%-10s %s digests recomputed", "tensors", h3_grouped(tensors, check->tensors - check->sampled));
    if (check->sampled > 0) h3_say("%-10s %s tensors are kept as samples: stages 2 and 3 make them again", "", h3_grouped(tensors, check->sampled));
    if (check->media > 0) h3_say("%-10s pictures and sound of %lld seeds decoded and hashed", "media", (long long)check->media);
    h3_say("%-10s %s gate checks, %s bounds agree with the verdict", "figures", h3_grouped(checks, check->checks),
           h3_grouped(bounds, check->bounds));
    H3_TRY(h3_report_make(&report, folder));
    int present;
    h3_status status = h3_report_check(&report, folder, &present);
    if (status == H3_OK) say("report", present ? "says what the stages say" : "not written; h3_report --run writes it");
    if (status == H3_OK) h3_say("%-10s %s: %s", "outcome", report.verdict, report.sentence);
    if (status == H3_OK)
        h3_say("%-10s %s  %s files are as they were written  digest %.8s", "VALID", folder, files, report.digest);
    h3_report_free(&report);
    return status;
}

static h3_status verify_run(const h3_args *args, const char *folder)
{
    (void)args;
    int64_t lines = 0;
    h3_run_check check = {.tell = on_damaged, .user = &lines};
    h3_status status = h3_run_check_all(&check, folder);
    if (lines > LINES_SHOWN) h3_say("%-10s and %lld more", "", (long long)(lines - LINES_SHOWN));
    if (status == H3_OK) status = say_run(&check, folder);
    h3_run_check_free(&check);
    return status;
}

/* --- archive ------------------------------------------------------------------------------------------------------ */

static void say_bag(const h3_bag *bag)
{
    static const char *const words[] = {"none", "present, not checked; --key PUB checks it", "good, ed25519",
                                        "BAD, not of ed25519"};
    char good[H3_GROUPED_SIZE], files[H3_GROUPED_SIZE];
    if (bag->name[0] == 0) return; /* not even a bag */
    h3_say("%-10s %s%s%s", "signature", words[bag->signature], bag->signature >= H3_BAG_GOOD ? " " : "",
           bag->signature >= H3_BAG_GOOD ? bag->fingerprint : "");
    if (bag->files > 0)
        h3_say("%-10s %s of %s files good", "payload", h3_grouped(good, bag->good), h3_grouped(files, bag->files));
    for (int64_t i = 0; i < bag->shown; i++) say("", bag->problems[i]);
    if (bag->problem_count > bag->shown) h3_say("%-10s and %lld more", "", (long long)(bag->problem_count - bag->shown));
}

static h3_status verify_archive(const h3_args *args, const char *path)
{
    h3_public_key key = {0};
    char files[H3_GROUPED_SIZE], bytes[H3_GROUPED_SIZE];
    H3_TRY(need_kind(path, 0));
    if (args->key != NULL) H3_TRY(h3_public_key_read(&key, args->key));
    h3_bag *bag = calloc(1, sizeof *bag);
    h3_status status =
        bag == NULL ? h3_error(H3_ENVIRONMENT, "out of memory") : h3_bag_verify(bag, path, args->key != NULL ? &key : NULL);
    if (bag != NULL && (status == H3_OK || status == H3_INTEGRITY)) say_bag(bag);
    if (status == H3_OK) h3_say("%-10s %s: %s", "outcome", bag->plan, bag->verdict);
    if (status == H3_OK)
        h3_say("%-10s %s  %s files, %s bytes  digest %.8s", "VALID", path, h3_grouped(files, bag->files),
               h3_grouped(bytes, bag->bytes), bag->digest);
    free(bag);
    h3_public_key_free(&key);
    return status;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static h3_status verify(const h3_args *args)
{
    static const struct {
        const char *name;
        h3_status (*run)(const h3_args *args, const char *path);
        int hashes, key;
    } kinds[] = {{"checkpoint", verify_checkpoint, 1, 0}, {"run", verify_run, 0, 0}, {"archive", verify_archive, 0, 1}};
    if (args->positional_count != 2)
        return h3_error(H3_USAGE, "say what to verify: checkpoint DIR, run DIR or archive FILE; see %s --help", args->program);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(args->positional[0], kinds[i].name) != 0) continue;
        if (args->hashes != NULL && !kinds[i].hashes)
            return h3_error(H3_USAGE, "--hashes belongs to checkpoint; see %s --help", args->program);
        if (args->key != NULL && !kinds[i].key)
            return h3_error(H3_USAGE, "--key belongs to archive; see %s --help", args->program);
        return kinds[i].run(args, args->positional[1]);
    }
    return h3_error(H3_USAGE, "\"%.60s\" cannot be verified: checkpoint, run or archive; see %s --help", args->positional[0],
                    args->program);
}

int main(int argc, char **argv)
{
    h3_args args;
    int done;
    h3_status status = h3_args_parse(&args, argc, argv, H3_ARG_VERIFY, help, &done);
    if (status == H3_OK && !done) status = verify(&args);
    if (status != H3_INTEGRITY) return h3_exit(args.program, status);
    say("INVALID", h3_error_text());
    return (int)status;
}
