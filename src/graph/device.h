/* Where tensors live. The walker allocates and moves through this table and knows no device by name. */
#ifndef H3_GRAPH_DEVICE_H
#define H3_GRAPH_DEVICE_H

#include "base/memory.h"
#include "base/text.h"

/* Sums over one row of two tensors x and g, in double; the order is in h3_device_row_sums. */
typedef struct h3_row_sum {
    double difference; /* (x-g)^2 */
    double norm;       /* g^2 */
    double dot;        /* (x-g) g */
    double squares;    /* (sum of g^2 over a group)^2, over the groups */
    double bad;        /* how many pairs are not finite */
} h3_row_sum;

/* How a device has worked since this was last taken; see "How busy a device is" below. */
typedef struct h3_device_work {
    int64_t spans;
    double start;  /* h3_clock when the first span began */
    double window; /* seconds from there to the end of the last one */
    double busy;   /* seconds within spans */
} h3_device_work;

/* A digest on its way; see h3_device_digest_start. */
typedef struct h3_digest_job h3_digest_job;

typedef struct h3_device {
    int32_t kind; /* H3_DEVICE_* */
    int32_t index;
    void *stream; /* all work of the process, in order */
    h3_status (*allocate)(void **out, size_t bytes);
    void (*release)(void *memory);
    h3_status (*to_host)(void *host, const void *device, size_t bytes);
    h3_status (*from_host)(void *device, const void *host, size_t bytes);
    h3_status (*copy)(void *to, const void *from, size_t bytes); /* within the device */
    h3_status (*fill)(void *memory, int byte, size_t bytes);     /* on the device */
    h3_status (*health)(void); /* asked after a failure: H3_ENVIRONMENT when the device itself has failed or is full, whoever noticed */
    h3_status (*trim)(void);   /* gives memory that is released but kept back to the device, for another process */
    h3_status (*memory)(size_t *available, size_t *total); /* bytes that are free or in this process's pool, and all there are */
    h3_status (*equal)(int *equal, const void *a, const void *b, size_t bytes);
    h3_status (*row_sums)(h3_row_sum *out, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group);
    h3_status (*synth)(h3_tensor *out, const uint32_t key[2], float base, float amp, int through_bf16); /* h3_synth_values */
    h3_status (*widen)(h3_tensor *out, const h3_tensor *bf16);                                           /* BF16 to F32 */
    h3_status (*samples)(void *out, const h3_tensor *tensor, int64_t count);
    h3_status (*digest_start)(h3_digest_job **job, const void *data, size_t bytes);
    h3_status (*span_begin)(void);
    h3_status (*span_end)(void);
    h3_status (*span_take)(h3_device_work *out);
} h3_device;

/*
 * How busy a device is: what is started between span_begin and span_end is its work. In spans are all calls of operators (h3_engine_call), the sums, samples and
 * comparisons below, and the making and widening of weights. Not in spans, so idle as far as is said here: copies to and from the host (weights that are read, tensors
 * for digests and files), copies and fills within the device, waiting, and the decoders.
 *
 * On a GPU a span lies between two events of the stream: it begins when everything before it is done, pauses between launches of one call are in it, and the
 * host waits for nothing. Up to 1024 spans are on their way; before one more the oldest is waited for, while the others keep the GPU at work. On the CPU work is done
 * on return, and the time is the host's.
 *
 * span_take waits for what is on its way, gives out what came since the last time, and begins anew. A span that is not ended, since its work failed, counts
 * nothing. Spans do not nest and are for one thread. H3_ENVIRONMENT when the device is lost.
 */

/* The host itself. */
const h3_device *h3_device_cpu(void);

/* Device `name` ("cpu" or "cuda") number `index`; it stays open as long as the process. One GPU a process. H3_ENVIRONMENT when this build or
 * this machine has none, H3_USAGE for another name. */
h3_status h3_device_open(const char *name, int index, const h3_device **out);
/* How many devices of that name this machine has; 0 when there is none. */
int h3_device_count(const char *name);
const char *h3_device_name(int32_t kind);

/* A dense tensor on the device, contents undefined except on the CPU where they are zero. Released with h3_device_free. */
h3_status h3_device_tensor(h3_tensor *out, const h3_device *device, int32_t dtype, int32_t rank, const int64_t *shape);
void h3_device_free(h3_tensor *tensor, const h3_device *device);
/* The same, all zeros on every device. */
h3_status h3_device_zeros(h3_tensor *out, const h3_device *device, int32_t dtype, int32_t rank, const int64_t *shape);
/* A new tensor with the same bytes, on the same device. */
h3_status h3_device_duplicate(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);
/* A device copy of a host tensor, and a host copy (h3_tensor_free) of a device tensor. */
h3_status h3_device_upload(h3_tensor *out, const h3_device *device, const h3_tensor *host);
h3_status h3_device_download(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);

/* A device tensor for the host to read: on the CPU the very memory, elsewhere a copy. Given back with h3_device_return. */
h3_status h3_device_borrow(h3_tensor *out, const h3_device *device, const h3_tensor *tensor);
void h3_device_return(h3_tensor *borrowed, const h3_device *device);
/* Whether two device tensors of one size have the same bytes; never when one is absent. */
h3_status h3_device_equal(int *equal, const h3_device *device, const h3_tensor *a, const h3_tensor *b);

/*
 * Sums over each of `rows` rows of x beside g (F32 or BF16, equal counts, dense, on the device); out[rows] is on the host.
 * Order, the same on every device: lane l of 256 adds elements l, l+256, ... of the row, ascending; then lanes l and l+128 are added, l and l+64, ...,
 * l and l+1. `squares`: lane l takes groups l, l+256, ..., each group's g^2 added ascending. Products and sums are rounded one by one.
 */
enum { H3_SUM_LANES = 256 };
h3_status h3_device_row_sums(h3_row_sum *out, const h3_device *device, const h3_tensor *x, const h3_tensor *g, int64_t rows, int64_t group);

/* Elements (j * 2654435761) mod N, j = 0 .. count-1, of a tensor of N; a new host tensor [count] of its type, fewer when N is less. */
h3_status h3_device_samples(h3_tensor *out, const h3_device *device, const h3_tensor *tensor, int64_t count);

/* The tensor digest (base/text.h) of a device tensor. Started ones run beside what comes next on the device: the tensor may be changed or freed by
 * later work on the device's stream. Each job is waited for once, which frees it; `out` NULL only frees. */
h3_status h3_device_digest(char out[H3_SHA256_HEX], const h3_device *device, const h3_tensor *tensor);
h3_status h3_device_digest_start(h3_digest_job **job, const h3_device *device, const h3_tensor *tensor);
h3_status h3_digest_job_wait(h3_digest_job *job, char out[H3_SHA256_HEX]);

#endif
