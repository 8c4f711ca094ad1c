/*
 * Evidence archives: a BagIt bag (RFC 8493) in a tar, as scripts/archive_evidence.sh makes it, checked while it is read; nothing
 * is unpacked.
 *
 *   <name>/bagit.txt, bag-info.txt        the latter says how many bytes and files are payload (Payload-Oxum)
 *   <name>/manifest-sha256.txt            every payload file
 *   <name>/pieces-sha256.txt              "<sha256> <first>-<last>  <path>": 4 MiB pieces of payload files larger than that, so
 * that damage has a place <name>/tagmanifest-sha256.txt         every other file but itself and the signature
 *   <name>/tagmanifest-sha256.txt.sig     Ed25519 over tagmanifest-sha256.txt, when it was signed
 *   <name>/data/...                       the run directory, sorted by path
 *   <name>/history/...                    logs, attempts and site facts, when they were asked for
 *
 * in this order. The signature covers every byte through tagmanifest, manifest and the strict form of the tar.
 */
#ifndef H3_STORE_BAG_H
#define H3_STORE_BAG_H

#include "base/text.h"
#include "store/signature.h"

typedef enum { H3_BAG_UNSIGNED, H3_BAG_NOT_CHECKED /* signed, but no key was given */, H3_BAG_GOOD, H3_BAG_BAD } h3_bag_signature;

enum { H3_BAG_SHOWN = 20, H3_BAG_LINE = 480 };

typedef struct h3_bag {
    char name[128];                                 /* the top folder */
    char digest[H3_SHA256_HEX];                     /* SHA-256 of tagmanifest-sha256.txt: the same for the same evidence */
    h3_bag_signature signature;
    char fingerprint[H3_FINGERPRINT_SIZE];          /* of the key that was given */
    char plan[128], verdict[64];                    /* from bag-info.txt; "" when they are not there */
    int64_t files, good, bytes;                     /* payload: listed; found as listed; their bytes */
    int64_t problem_count;                          /* files that are not as they should be */
    int64_t shown;
    char problems[H3_BAG_SHOWN][H3_BAG_LINE];       /* the first of them, a line each */
} h3_bag;

/* `key` NULL: a signature is not checked; with a key it must be there and good. H3_OK: every hash holds. H3_INTEGRITY: the
 * message says what is wrong in all; what was found until then is in `out`. H3_USAGE: the file is missing or the key is none. */
h3_status h3_bag_verify(h3_bag *out, const char *path, const h3_public_key *key);

#endif
