/* Files that appear whole or not at all. */
#ifndef H3_STORE_PUBLISH_H
#define H3_STORE_PUBLISH_H

#include <cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

/* Names of temporary files start with this; whoever lists a folder ignores them. */
#define H3_TEMPORARY_PREFIX ".tmp-"

/* Writes to a temporary name beside `path`, fsyncs, renames, fsyncs the directory. Failure leaves the old file and no temporary
 * (only when the very last fsync fails is the new file in place already). The folder must exist. H3_ENVIRONMENT, naming it; H3_USAGE when `path` names no
 * file, or a device, pipe or socket has the name or a link leads to one: a file that is renamed onto it would take its place. */
h3_status h3_publish(const char *path, const void *data, size_t size);
/* The same for JSON text (h3_json_print); gives size and hash when asked (pointers may be NULL). */
h3_status h3_publish_json(const char *path, const cJSON *value, int64_t *size, char sha256[H3_SHA256_HEX]);

/* A file on its way to its name, which others fill: they open it by the path that h3_pending_path gives. */
typedef struct h3_pending {
    const char *target, *name; /* the name is the target's last part */
    int folder, file;          /* open until the end */
    char temporary[64];
} h3_pending;
/* An empty file beside `path`, which must stay until the end. It is locked, so that h3_clean_temporaries spares it. Ends with one of the two below.
 * H3_USAGE and H3_ENVIRONMENT as above. */
h3_status h3_pending_open(h3_pending *out, const char *path);
h3_status h3_pending_path(char out[H3_PATH_MAX], const h3_pending *pending);
/* What is in the file now gets the name, as h3_publish does it and with its failures. */
h3_status h3_pending_publish(h3_pending *pending);
/* Removes the file; the old one stays. */
void h3_pending_abandon(h3_pending *pending);

/* mkdir -p; H3_ENVIRONMENT with the path on failure. Folders that exist may be reached through symlinks; below the first folder
 * that it creates no symlink is followed. */
h3_status h3_make_folders(const char *path);
/* Removes a file or a folder tree (no symlink is followed). Absent is fine. */
h3_status h3_remove_tree(const char *path);
/* Removes the temporaries that killed writers left in a folder, and with `deep` in those below it. A temporary whose writer
 * lives is kept (it is locked). An absent folder is fine. */
h3_status h3_clean_temporaries(const char *folder, int deep);
/* Relative, no empty, "." or ".." component, no leading '/', no backslash or control character; H3_INTEGRITY otherwise. */
h3_status h3_check_relative(const char *path, const char *where);

#endif
