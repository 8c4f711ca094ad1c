/* The two halves of checking a bag: the tag files that say what must be there, and the files themselves. */
#ifndef H3_STORE_BAG_INTERNAL_H
#define H3_STORE_BAG_INTERNAL_H

#include "store/bag.h"
#include "store/hash_list.h"
#include "store/tar.h"

enum { H3_BAG_PIECE = 4 << 20 };

/* A line of pieces-sha256.txt. */
typedef struct h3_bag_piece {
    const char *path, *sha256;
    int64_t first, last; /* bytes */
} h3_bag_piece;

typedef struct h3_bag_tags {
    h3_hash_list payload; /* manifest-sha256.txt, ascending */
    h3_hash_list others;  /* tagmanifest-sha256.txt, ascending */
    char *pieces_text;
    size_t piece_count;
    h3_bag_piece *pieces; /* ascending by path and place */
    int64_t octets, count; /* Payload-Oxum */
} h3_bag_tags;

/* Reads the tag files and checks them against each other and the signature. After it the tar stands at the first other file, or
 * *end is 1. */
h3_status h3_bag_tags_read(h3_bag_tags *out, h3_bag *bag, h3_tar *tar, const h3_public_key *key, int *end);
void h3_bag_tags_free(h3_bag_tags *tags);

/* The name of the tar's file below the top folder; H3_INTEGRITY when it lies elsewhere. */
h3_status h3_bag_inside(const char **out, const h3_bag *bag, const h3_tar *tar);

/* One line about a file that is not as it should be. */
void h3_bag_problem(h3_bag *bag, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
