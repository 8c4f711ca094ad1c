/* Ed25519 signatures. */
#ifndef H3_STORE_SIGNATURE_H
#define H3_STORE_SIGNATURE_H

#include <stddef.h>

#include "base/error.h"

enum { H3_SIGNATURE_SIZE = 64, H3_FINGERPRINT_SIZE = 32 };

/* A public key from a PEM file ("openssl pkey -in private.pem -pubout"). H3_USAGE when it is not one. Free with
 * h3_public_key_free. */
typedef struct h3_public_key {
    void *key;
    char fingerprint[H3_FINGERPRINT_SIZE]; /* first 8 bytes of the SHA-256 of the raw key, "7c:19:..." */
} h3_public_key;
h3_status h3_public_key_read(h3_public_key *out, const char *path);
void h3_public_key_free(h3_public_key *key);

/* H3_INTEGRITY unless `signature` is this key's over the message; `where` names what is signed. */
h3_status h3_signature_check(const h3_public_key *key, const void *message, size_t size, const void *signature,
                             size_t signature_size, const char *where);

#endif
