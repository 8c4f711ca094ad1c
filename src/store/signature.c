#include "store/signature.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { KEY_LIMIT = 64 << 10, RAW_SIZE = 32, SHOWN = 8 };

static h3_status show(h3_public_key *key, const char *path)
{
    unsigned char raw[RAW_SIZE], hash[EVP_MAX_MD_SIZE];
    size_t size = sizeof raw;
    if (EVP_PKEY_id(key->key) != EVP_PKEY_ED25519 || !EVP_PKEY_get_raw_public_key(key->key, raw, &size) || size != RAW_SIZE)
        return h3_error(H3_USAGE, "%s is not an Ed25519 key; make one with: openssl genpkey -algorithm ed25519", path);
    if (!EVP_Digest(raw, sizeof raw, hash, NULL, EVP_sha256(), NULL))
        return h3_error(H3_ENVIRONMENT, "SHA-256 is not available; check the installation of OpenSSL");
    for (int i = 0; i < SHOWN; i++) snprintf(key->fingerprint + 3 * i, 4, i + 1 < SHOWN ? "%02x:" : "%02x", hash[i]);
    return H3_OK;
}

h3_status h3_public_key_read(h3_public_key *out, const char *path)
{
    char *text;
    size_t size;
    *out = (h3_public_key){0};
    H3_TRY(h3_file_read(&text, &size, path, KEY_LIMIT, H3_USAGE));
    BIO *bio = BIO_new_mem_buf(text, (int)size);
    if (bio != NULL) out->key = PEM_read_bio_PUBKEY(bio, NULL, NULL, NULL);
    BIO_free(bio);
    free(text);
    if (out->key == NULL)
        return h3_error(
            H3_USAGE,
            "%s is not a public key in PEM form; make it from the private one: openssl pkey -in PRIVATE.pem -pubout -out %s",
            path, path);
    h3_status status = show(out, path);
    if (status != H3_OK) h3_public_key_free(out);
    return status;
}

void h3_public_key_free(h3_public_key *key)
{
    EVP_PKEY_free(key->key);
    *key = (h3_public_key){0};
}

h3_status h3_signature_check(const h3_public_key *key, const void *message, size_t size, const void *signature,
                             size_t signature_size, const char *where)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context == NULL) return h3_error(H3_ENVIRONMENT, "out of memory to check a signature");
    int ready = EVP_DigestVerifyInit(context, NULL, NULL, NULL, key->key);
    int good = ready == 1 && EVP_DigestVerify(context, signature, signature_size, message, size) == 1;
    EVP_MD_CTX_free(context);
    if (ready != 1) return h3_error(H3_ENVIRONMENT, "Ed25519 is not available; check the installation of OpenSSL");
    return good ? H3_OK
                : h3_error(H3_INTEGRITY, "%s: the signature is not of the key %s: signed with another key, or changed since",
                           where, key->fingerprint);
}
