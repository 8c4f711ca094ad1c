/* What is kept and sent of a seed whose media are done: its facts and the list of its files, as JSON. */
#ifndef H3_QUALIFY_MEDIA_RECORD_H
#define H3_QUALIFY_MEDIA_RECORD_H

#include "qualify/generation_media.h"

/* {"seed","media": facts,"files": [{"path","size","sha256"}...]}; caller deletes. */
h3_status h3_media_record_json(cJSON **out, const h3_seed_media *seed, int64_t number, const char *folder);
/* The same read back into an empty `out`, which becomes done. H3_INTEGRITY; files outside `folder` are refused. */
h3_status h3_media_record_read(h3_seed_media *out, int64_t *number, const cJSON *json, const char *folder, const char *where);

/* Publishes a record with `key` and the SHA-256 of its own text at `path`. */
h3_status h3_media_record_save(const char *path, const char *key, const h3_seed_media *seed, int64_t number, const char *folder);
/* *foreign: it is of another generation. H3_INTEGRITY when it has changed since it was written. */
h3_status h3_media_record_load(h3_seed_media *out, int *foreign, const char *path, const char *key, int64_t number, const char *folder);

#endif
