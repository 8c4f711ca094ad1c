/* What parts of the emulated GPU that bring instructions of their own know of its threads (emulate.cpp). */
#ifndef H3_TESTS_CUDA_EMULATE_THREADS_H
#define H3_TESTS_CUDA_EMULATE_THREADS_H

#include <stddef.h>
#include <stdint.h>

namespace emulated {

constexpr unsigned WARP = 32;

/* Ends the run: which kernel, block and thread, and what it did wrong. */
[[noreturn]] void stop(const char *problem, const char *detail);

/* All lanes of the warp bring `mine`; the last one to come runs `act` for all. */
void meet(const char *what, void *mine, void (*act)(void *const *lanes));

/* This thread does not go on before `ready` says so. */
struct condition {
    bool (*ready)(const void *what, unsigned detail);
    const void *what;
    unsigned detail;
};
void wait_until(const char *where, const condition &awaited);

unsigned thread();  /* which runs, of all the cluster's blocks, which are whole groups of four warps */
unsigned block();   /* which of the cluster it belongs to */
bool land_late();   /* whether asynchronous work is done as late as can be, */
bool land_now();    /* and whether this copy lands as soon as it is issued: where threads take turns at random, some do */
uint32_t random_below(unsigned limit);
char *shared(unsigned block, size_t *bytes);

/* Clusters: all threads of all blocks; and before a thread reaches into the memory of another block, which must have met and must meet again before it ends. */
void meet_cluster();
void reach(unsigned block);
unsigned cluster(); /* how many blocks */
bool has_ended(unsigned block);

/* What such a part does at three occasions; NULL without it. */
struct part {
    void (*start)(unsigned threads); /* the blocks of a cluster start, with so many threads together */
    bool (*land)();                  /* nothing can run, or all have ended: whether something that was on its way has landed now */
    void (*end)(unsigned thread);    /* a thread ends: stops the run when something that it should have waited for is under way */
};
extern const part *hopper;

} // namespace emulated

#endif
