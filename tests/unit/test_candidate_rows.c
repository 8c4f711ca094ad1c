/*
 * What the CPU candidate promises about bits: a row's do not depend on its company, its place or the number of rows;
 * nothing depends on the number of threads; nothing depends on the run.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <dirent.h>

#include "candidate_support.h"

/* ---- rows ---- */

/* What is gathered: packed rows, attention's query rows, or batch items. */
typedef enum { PACKED_ROWS, QUERY_ROWS, BATCH_ITEMS } gathered;

/* The dimension of tensor `slot` that runs over the gathered things, or -1. */
static int axis_of(h3_call *c, int slot, const char *node, gathered what)
{
    h3_tensor *list[TENSORS];
    tensors_of(c, list);
    const h3_tensor *t = list[slot];
    if (t->rank == 0) return -1;
    if (what == BATCH_ITEMS) return 0;
    if (what == QUERY_ROWS) {
        if (t == &c->saved[0]) return 2;
        return t == &c->in[0] || t == &c->out || t == &c->dout || t == &c->din[0] ? 1 : -1;
    }
    if ((t >= c->param && t < c->param + H3_MAX_PARAM) || (t >= c->dparam && t < c->dparam + H3_MAX_PARAM)) return -1;
    const int table = is(node, "norm") ? 1 : is(node, "residual") ? 2 : -1;
    return table >= 0 && t == &c->in[table] ? -1 : 0;
}

/* A copy of `t` with the entries `list` of one dimension. */
static h3_tensor gather(pool *p, const h3_tensor *t, int axis, const int64_t *list, int64_t count)
{
    h3_tensor result = *t;
    result.shape[axis] = count;
    result.data = take(p, tensor_bytes(&result));
    size_t outer = 1, inner = h3_dtype_size(t->dtype);
    for (int i = 0; i < axis; i++) outer *= (size_t)t->shape[i];
    for (int i = axis + 1; i < t->rank; i++) inner *= (size_t)t->shape[i];
    for (size_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < count; i++) {
            memcpy((char *)result.data + (o * (size_t)count + (size_t)i) * inner,
                   (const char *)t->data + (o * (size_t)t->shape[axis] + (size_t)list[i]) * inner, inner);
        }
    }
    return result;
}

static h3_call gather_call(pool *p, h3_call *full, const char *node, gathered what, const int64_t *list, int64_t count)
{
    h3_call c = *full;
    h3_tensor *to[TENSORS];
    tensors_of(&c, to);
    for (int i = 0; i < TENSORS; i++) {
        const int axis = axis_of(full, i, node, what);
        if (axis >= 0) *to[i] = gather(p, to[i], axis, list, count);
    }
    return c;
}

/*
 * Runs the gathered call afresh, over poisoned outputs, and compares every gathered tensor with the gathered results of
 * the full call, taken with `expected` for the list. Returns the first tensor that differs, or -1.
 */
static int company_matters(pool *p, h3_call *full, const char *node, gathered what, const int64_t *list, const int64_t *expected,
                           int64_t count)
{
    h3_call few = gather_call(p, full, node, what, list, count), wanted = gather_call(p, full, node, what, expected, count);
    few = with_fresh_outputs(p, &few);
    run_both(p, node, &few);
    h3_tensor *left[TENSORS], *right[TENSORS];
    tensors_of(&few, left);
    tensors_of(&wanted, right);
    for (int i = 0; i < TENSORS; i++) {
        if (axis_of(full, i, node, what) < 0) continue;
        if (memcmp(left[i]->data, right[i]->data, tensor_bytes(left[i]))) return i;
    }
    return -1;
}

/* Lists that put rows in every company: alone, first and last ones, tile edges, backwards, strided, repeated. */
static int64_t make_list(int kind, int64_t total, int64_t *list)
{
    static const int64_t edges[] = {1, 2, 3, 5, 6, 7, 23, 24, 25, 31, 32, 33, 63, 64, 65, 95, 96, 97};
    const int edge_count = (int)(sizeof edges / sizeof edges[0]);
    int64_t count = 0;
    if (kind < edge_count) {
        const int64_t skipped = edges[kind] < total ? total - edges[kind] : 0;
        for (; count < edges[kind] && count < total; count++) list[count] = skipped + count;
        return count;
    }
    switch (kind - edge_count) {
    case 0: for (; count < total; count++) list[count] = total - 1 - count; return count;
    case 1: for (; count < total; count++) list[count] = count * 7 % total; return count;
    case 2: for (; count < (total + 1) / 2; count++) list[count] = 2 * count; return count;
    case 3: for (; count < total + 13; count++) list[count] = total / 2; return count;
    case 4: for (; count < total; count++) list[count] = (count + total / 2) % total; return count;
    default: return 0;
    }
}

static void check_company(const char *node, const dims *d, gathered what)
{
    pool p = {0};
    h3_call full = build(&p, node, d);
    run_both(&p, node, &full);
    const int64_t total = what == PACKED_ROWS ? d->batch * d->rows : what == QUERY_ROWS ? d->queries : d->batch;
    int64_t *list = take(&p, (size_t)(total + 16) * sizeof *list), count;
    for (int kind = 0; (count = make_list(kind, total, list)) > 0; kind++) {
        const size_t mark = p.count;
        const int differs = company_matters(&p, &full, node, what, list, list, count);
        if (differs >= 0) fail_msg("%s: tensor %d of list %d of %d depends on its company", node, differs, kind, (int)total);
        while (p.count > mark) free(p.areas[--p.count]);
    }
    give_back(&p);
}

static void a_rows_bits_do_not_depend_on_its_company(void **state)
{
    (void)state;
    const dims list[] = {TINY(131), ODD(55)};
    for (size_t i = 1; i < NODES; i++) {
        for (size_t k = 0; k < 2 && !is(node_names[i], "attention"); k++) {
            dims d = list[k];
            check_company(node_names[i], &d, PACKED_ROWS);
            d.modulated = false;
            if (is(node_names[i], "norm") || is(node_names[i], "residual")) check_company(node_names[i], &d, PACKED_ROWS);
        }
    }
}

static void attentions_query_rows_and_items_keep_their_bits(void **state)
{
    (void)state;
    dims list[] = {TINY(78), ODD(100)};
    list[1].batch = 5;
    for (int k = 0; k < 2; k++) {
        check_company("attention", &list[k], QUERY_ROWS);
        check_company("attention", &list[k], BATCH_ITEMS);
    }
}

/* Each timestep's rows of the modulation table. */
static void a_timesteps_table_does_not_depend_on_the_others(void **state)
{
    (void)state;
    pool p = {0};
    dims d = TINY(5);
    d.timesteps = 7;
    h3_call full = build(&p, "adaln_projection", &d);
    run(&p, "adaln_projection", &full, false);
    for (int64_t t = 0; t < d.timesteps; t++) {
        h3_call one = full;
        one.in[0] = gather(&p, &full.in[0], 0, &t, 1);
        one.out = tensor(&p, H3_BF16, 3, 3, 6, d.hidden, 0);
        run(&p, "adaln_projection", &one, false);
        const char *expected = (const char *)full.out.data + (size_t)t * tensor_bytes(&one.out);
        assert_memory_equal(one.out.data, expected, tensor_bytes(&one.out));
        assert_memory_not_equal(one.out.data, (const char *)full.out.data + (size_t)((t + 1) % 7) * tensor_bytes(&one.out),
                                tensor_bytes(&one.out));
    }
    give_back(&p);
}

/* The comparison itself: against other rows' results it must find the difference. */
static void another_rows_bits_are_noticed(void **state)
{
    (void)state;
    const dims d = ODD(20);
    for (size_t i = 1; i < NODES; i++) {
        pool p = {0};
        h3_call full = build(&p, node_names[i], &d);
        run_both(&p, node_names[i], &full);
        const gathered what = is(node_names[i], "attention") ? QUERY_ROWS : PACKED_ROWS;
        const int64_t list[3] = {4, 9, 2}, wrong[3] = {4, 9, 3};
        assert_true(company_matters(&p, &full, node_names[i], what, list, list, 3) < 0);
        assert_true(company_matters(&p, &full, node_names[i], what, list, wrong, 3) >= 0);
        give_back(&p);
    }
}

/* ---- threads and repeats ---- */

static void set_threads(int threads)
{
    void (*set)(int);
    void *symbol = dlsym(library_handle(), "omp_set_num_threads");
    assert_non_null(symbol);
    memcpy(&set, &symbol, sizeof set);
    set(threads);
}

static int running_threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) return -1;
    for (struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks)) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void nothing_depends_on_the_number_of_threads(void **state)
{
    (void)state;
    const int threads[] = {2, 3, 7};
    for (size_t i = 0; i < NODES; i++) {
        pool p = {0};
        dims d = TINY(129);
        d.batch = 2;
        h3_call one = build(&p, node_names[i], &d);
        set_threads(1);
        run_both(&p, node_names[i], &one);
        for (size_t k = 0; k < sizeof threads / sizeof threads[0]; k++) {
            h3_call many = with_fresh_outputs(&p, &one);
            set_threads(threads[k]);
            run_both(&p, node_names[i], &many);
            const int differs = first_difference(&one, &many);
            if (differs >= 0) fail_msg("%s: tensor %d depends on %d threads", node_names[i], differs, threads[k]);
        }
        give_back(&p);
    }
    const int seen = running_threads();
    assert_true(seen < 0 || seen >= 7); /* the work above was really shared */
    set_threads(1);
}

/* Runs every node twice, the second time over other leftovers in the workspace and between calls of other nodes. */
static void nothing_depends_on_the_run(void **state)
{
    (void)state;
    const dims d = TINY(41);
    set_threads(2);
    pool p = {0};
    h3_call first[NODES];
    for (size_t i = 0; i < NODES; i++) {
        first[i] = build(&p, node_names[i], &d);
        run_both(&p, node_names[i], &first[i]);
    }
    for (size_t i = NODES; i-- > 0;) {
        h3_call again = with_fresh_outputs(&p, &first[i]);
        h3_call_plan plan;
        const h3_operator *op = operator_of(node_names[i]);
        assert_int_equal(op->plan(&again, &plan), 0);
        const size_t bytes = plan.forward_workspace > plan.backward_workspace ? plan.forward_workspace : plan.backward_workspace;
        again.workspace = take(&p, bytes);
        again.workspace_bytes = bytes;
        memset(again.workspace, 0x3f, bytes);
        assert_int_equal(op->forward(&again), 0);
        assert_int_equal(op->backward(&again), 0);
        assert_int_equal(first_difference(&first[i], &again), -1);
        ((uint16_t *)again.out.data)[7] ^= 1;
        assert_int_not_equal(first_difference(&first[i], &again), -1);
    }
    give_back(&p);
    set_threads(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rows_bits_do_not_depend_on_its_company),
        cmocka_unit_test(attentions_query_rows_and_items_keep_their_bits),
        cmocka_unit_test(a_timesteps_table_does_not_depend_on_the_others),
        cmocka_unit_test(another_rows_bits_are_noticed),
        cmocka_unit_test(nothing_depends_on_the_number_of_threads),
        cmocka_unit_test(nothing_depends_on_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
