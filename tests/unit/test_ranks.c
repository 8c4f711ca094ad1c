/* Block ranges, and what one process can show of the ranks. Several ranks: tests/system/test_ranks.sh. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "dist/ranks.h"
#include "graph/device.h"

enum { MOST = 64 };

/* --- block ranges --------------------------------------------------------------------------------------------------- */

/* Why the sizes of `ranks` ranges over `blocks` are wrong, or NULL. */
static const char *range_fault(const int64_t *first, const int64_t *count, int ranks, int64_t blocks)
{
    int64_t next = 0, least = count[0], most = count[0], larger = 0, larger_between = 0;
    for (int r = 0; r < ranks; r++) {
        if (first[r] != next) return "not contiguous";
        next += count[r];
        if (count[r] < least) least = count[r];
        if (count[r] > most) most = count[r];
    }
    if (next != blocks) return "not all blocks";
    if (least < 1) return "an empty range";
    if (most - least > 1) return "sizes differ by more than one";
    if (most == least || ranks <= 2) return NULL;
    for (int r = 0; r < ranks; r++) larger += count[r] == most;
    for (int r = 1; r < ranks - 1; r++) larger_between += count[r] == most;
    if (larger_between < larger && larger_between < ranks - 2) return "a larger range at an end";
    return NULL;
}

static void test_every_range(void **state)
{
    int64_t first[MOST], count[MOST];
    (void)state;
    for (int64_t blocks = 1; blocks <= MOST; blocks++)
        for (int ranks = 1; ranks <= blocks; ranks++) {
            for (int r = 0; r < ranks; r++) assert_int_equal(h3_block_range(r, ranks, blocks, &first[r], &count[r]), H3_OK);
            assert_null(range_fault(first, count, ranks, blocks));
        }
}

/* The fault finder above finds each of its faults. */
static void test_range_faults(void **state)
{
    (void)state;
    assert_string_equal(range_fault((int64_t[]){0, 3}, (int64_t[]){2, 2}, 2, 4), "not contiguous");
    assert_string_equal(range_fault((int64_t[]){0, 2}, (int64_t[]){2, 2}, 2, 5), "not all blocks");
    assert_string_equal(range_fault((int64_t[]){0, 0}, (int64_t[]){0, 1}, 2, 1), "an empty range");
    assert_string_equal(range_fault((int64_t[]){0, 3}, (int64_t[]){3, 1}, 2, 4), "sizes differ by more than one");
    assert_string_equal(range_fault((int64_t[]){0, 2, 3}, (int64_t[]){2, 1, 1}, 3, 4), "a larger range at an end");
    assert_string_equal(range_fault((int64_t[]){0, 1, 2}, (int64_t[]){1, 1, 2}, 3, 4), "a larger range at an end");
}

static void expect_sizes(int ranks, int64_t blocks, const int64_t *sizes)
{
    for (int r = 0; r < ranks; r++) {
        int64_t first, count;
        assert_int_equal(h3_block_range(r, ranks, blocks, &first, &count), H3_OK);
        assert_int_equal(count, sizes[r]);
    }
}

static void test_known_ranges(void **state)
{
    (void)state;
    expect_sizes(8, 50, (int64_t[]){6, 7, 7, 6, 6, 6, 6, 6});
    expect_sizes(3, 50, (int64_t[]){16, 17, 17});
    expect_sizes(4, 50, (int64_t[]){12, 13, 13, 12});
    expect_sizes(2, 51, (int64_t[]){25, 26});
    expect_sizes(1, 50, (int64_t[]){50});
}

static void expect_refused(int rank, int ranks, int64_t blocks, const char *text)
{
    int64_t first = -1, count = -1;
    assert_int_equal(h3_block_range(rank, ranks, blocks, &first, &count), H3_USAGE);
    assert_non_null(strstr(h3_error_text(), text));
    assert_int_equal(first, 0);
    assert_int_equal(count, 0);
}

static void test_refused_ranges(void **state)
{
    (void)state;
    expect_refused(0, 4, 3, "4 ranks are too many for 3 blocks");
    expect_refused(0, 0, 3, "rank 0 of 0");
    expect_refused(-1, 2, 3, "rank -1 of 2");
    expect_refused(2, 2, 3, "rank 2 of 2");
    expect_refused(0, 1, 0, "0 blocks");
    expect_refused(0, 1, INT64_MIN, "blocks");
}

/* --- one process ---------------------------------------------------------------------------------------------------- */

static h3_ranks ranks;

static void test_watchdog_times(void **state)
{
    (void)state;
    static const double wrong[] = {0, -1, 0.05, 2e6, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(h3_ranks_start(&ranks, NULL, NULL, wrong[i]), H3_USAGE);
        assert_non_null(strstr(h3_error_text(), "watchdog"));
        h3_ranks_finish(&ranks); /* nothing was started: nothing to end */
        h3_ranks_beat(&ranks, "nowhere", 0);
    }
}

static void test_start(void **state)
{
    h3_ranks second;
    (void)state;
    assert_int_equal(h3_ranks_start(&ranks, NULL, NULL, 30), H3_OK);
    assert_int_equal(ranks.rank, 0);
    assert_int_equal(ranks.count, 1);
    assert_int_equal(h3_ranks_start(&second, NULL, NULL, 30), H3_ENVIRONMENT);
    assert_non_null(strstr(h3_error_text(), "started before"));
}

static void test_agree_alone(void **state)
{
    static const h3_status every[] = {H3_OK, H3_STOPPED, H3_FAILED, H3_USAGE, H3_INTEGRITY, H3_ENVIRONMENT};
    (void)state;
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
        h3_error(every[i], "as it was");
        assert_int_equal(h3_ranks_agree(&ranks, every[i]), every[i]);
        assert_string_equal(h3_error_text(), "as it was");
    }
}

static void test_broadcast_and_gather_alone(void **state)
{
    char text[] = "five.";
    void *data = text, **all;
    size_t size = 5, *sizes;
    (void)state;
    assert_int_equal(h3_ranks_broadcast(&ranks, 0, &data, &size), H3_OK);
    assert_ptr_equal(data, text);
    assert_int_equal(size, 5);
    assert_int_equal(h3_ranks_broadcast(&ranks, 1, &data, &size), H3_USAGE);
    assert_int_equal(h3_ranks_gather(&ranks, text, 5, &all, &sizes), H3_OK);
    assert_int_equal(sizes[0], 5);
    assert_memory_equal(all[0], text, 5);
    free(all[0]);
    free(all);
    free(sizes);
}

static void test_message_to_itself(void **state)
{
    int64_t sent[1000], received[1000];
    (void)state;
    for (int i = 0; i < 1000; i++) sent[i] = i * i;
    assert_int_equal(h3_ranks_send(&ranks, 0, 5, sent, sizeof sent), H3_OK);
    memset(sent, 0, sizeof sent);
    assert_int_equal(h3_ranks_receive(&ranks, 0, 5, received, sizeof received), H3_OK);
    for (int i = 0; i < 1000; i++) assert_int_equal(received[i], i * i);
    assert_int_equal(h3_ranks_send(&ranks, 0, 5, sent, 10), H3_OK);
    assert_int_equal(h3_ranks_receive(&ranks, 0, 5, received, 11), H3_INTEGRITY);
    assert_non_null(strstr(h3_error_text(), "rank 0 expects 11 bytes and rank 0 sent 10"));
    assert_int_equal(h3_ranks_send(&ranks, 1, 5, sent, 10), H3_USAGE);
    assert_int_equal(h3_ranks_send(&ranks, 0, -1, sent, 10), H3_USAGE);
    assert_int_equal(h3_ranks_receive(&ranks, 0, 1000, sent, 10), H3_USAGE);
}

/* A chain of one has no neighbours. */
static void test_link_alone(void **state)
{
    h3_link link = h3_ranks_link(&ranks, h3_device_cpu());
    float value = 1;
    h3_tensor tensor = h3_tensor_view(&value, H3_F32, 1, H3_SHAPE(1));
    (void)state;
    for (int direction = 0; direction < 2; direction++) {
        assert_int_equal(link.send(link.user, direction, &tensor), H3_USAGE);
        assert_int_equal(link.receive(link.user, direction, &tensor), H3_USAGE);
    }
}

static void test_stop(void **state)
{
    (void)state;
    assert_int_equal(h3_ranks_stop_requested(&ranks), H3_OK);
    raise(SIGUSR1);
    assert_int_equal(h3_ranks_stop_requested(&ranks), H3_STOPPED);
    assert_non_null(strstr(h3_error_text(), "stopped by signal 10"));
    assert_int_equal(h3_ranks_stop_requested(&ranks), H3_STOPPED); /* and stays so */
}

static void test_finish(void **state)
{
    struct sigaction action;
    int ended = 0;
    (void)state;
    h3_ranks_finish(&ranks);
    h3_ranks_finish(&ranks);
    MPI_Finalized(&ended);
    assert_true(ended);
    sigaction(SIGTERM, NULL, &action);
    assert_true(action.sa_handler == SIG_DFL);
    assert_int_equal(h3_ranks_start(&ranks, NULL, NULL, 30), H3_ENVIRONMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_range),
        cmocka_unit_test(test_range_faults),
        cmocka_unit_test(test_known_ranges),
        cmocka_unit_test(test_refused_ranges),
        cmocka_unit_test(test_watchdog_times),
        cmocka_unit_test(test_start), /* from here to the end in this order: MPI starts once in a process */
        cmocka_unit_test(test_agree_alone),
        cmocka_unit_test(test_broadcast_and_gather_alone),
        cmocka_unit_test(test_message_to_itself),
        cmocka_unit_test(test_link_alone),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_finish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
