/* Batch transforms: which variants there are, what they gather, and what they compare. */
#include "golden_files.h"

#include "qualify/batch.h"

enum { ROWS = 11, WIDTH = 3, HEADS = 2, DIM = 4, TIMES = 2 };

/* A state of one item whose every element says where it comes from. */
typedef struct source {
    h3_block_state state;
    uint16_t x[ROWS * WIDTH], q[ROWS * HEADS * DIM], table[3 * TIMES * 6 * WIDTH], grad[ROWS * WIDTH];
    float temb[TIMES * 5];
    int32_t index[ROWS];
} source;

static void make_source(source *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < ROWS * WIDTH; i++) s->x[i] = (uint16_t)(0x1000 + i);
    for (int i = 0; i < ROWS * WIDTH; i++) s->grad[i] = (uint16_t)(0x2000 + i);
    for (int i = 0; i < ROWS * HEADS * DIM; i++) s->q[i] = (uint16_t)(0x3000 + i);
    for (int i = 0; i < 3 * TIMES * 6 * WIDTH; i++) s->table[i] = (uint16_t)i;
    for (int i = 0; i < TIMES * 5; i++) s->temb[i] = (float)(i + 1);
    for (int i = 0; i < ROWS; i++) s->index[i] = i % (3 * TIMES);
    s->state.batch = 1;
    s->state.value[H3_VALUE_X] = h3_tensor_view(s->x, H3_BF16, 2, H3_SHAPE(ROWS, WIDTH));
    s->state.value[H3_VALUE_INDEX] = h3_tensor_view(s->index, H3_I32, 1, H3_SHAPE(ROWS));
    s->state.value[H3_VALUE_TEMB] = h3_tensor_view(s->temb, H3_F32, 2, H3_SHAPE(TIMES, 5));
    s->state.value[H3_NODE_ADALN] = h3_tensor_view(s->table, H3_BF16, 3, H3_SHAPE(3 * TIMES, 6, WIDTH));
    s->state.value[H3_NODE_ROPE_Q] = h3_tensor_view(s->q, H3_BF16, 3, H3_SHAPE(ROWS, HEADS, DIM));
    s->state.value[H3_NODE_ROPE_K] = s->state.value[H3_NODE_ROPE_Q];
    s->state.grad[H3_NODE_NORM1] = h3_tensor_view(s->grad, H3_BF16, 2, H3_SHAPE(ROWS, WIDTH));
}

static const h3_batch_variant *find(const h3_batch_variant *variants, int count, int64_t items, int64_t position, int64_t rows, int negated)
{
    for (int i = 0; i < count; i++) {
        const h3_batch_variant *v = &variants[i];
        if (v->items == items && v->position == position && v->rows == rows && v->offset == 0 && v->negated == negated) return v;
    }
    return NULL;
}

static void test_variants_of_the_specification(void **state)
{
    (void)state;
    static const int64_t populations[] = {1, 2, 3, 5, 8, 17, 45}, edges[] = {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257};
    h3_batch_variant v[64];
    int count = h3_batch_variants(v, 64, 78);
    for (size_t i = 0; i < sizeof populations / sizeof *populations; i++) assert_non_null(find(v, count, populations[i], 0, 0, 0));
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) assert_non_null(find(v, count, 1, 0, edges[i], 0));
    assert_non_null(find(v, count, 3, 1, 0, 0));
    assert_non_null(find(v, count, 3, 2, 0, 0));
    assert_non_null(find(v, count, 3, 1, 0, 1));
    int64_t next = 0; /* another chunking: pieces that follow each other and cover all rows */
    for (int i = 0; i < count; i++) {
        if (strncmp(v[i].name, "chunk", 5) != 0) continue;
        assert_int_equal(v[i].offset, next);
        next += v[i].rows;
        assert_true(h3_batch_partial(&v[i]));
    }
    assert_int_equal(next, 78);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++) assert_string_not_equal(v[i].name, v[j].name);
    assert_int_equal(h3_batch_variants(v, 5, 78), 5);
}

static void test_gathered_rows(void **state)
{
    (void)state;
    source s;
    h3_block_state out;
    make_source(&s);
    h3_batch_variant v = {.items = 3, .position = 1};
    assert_good(h3_batch_state(&out, h3_device_cpu(), &s.state, &v, 0));
    assert_int_equal(out.batch, 3);
    const h3_tensor *x = &out.value[H3_VALUE_X], *index = &out.value[H3_VALUE_INDEX];
    assert_int_equal(x->shape[0], 3 * ROWS);
    assert_int_equal(index->shape[0], 3 * ROWS);
    assert_memory_equal((uint16_t *)x->data + ROWS * WIDTH, s.x, sizeof s.x); /* the item that is looked at */
    assert_memory_not_equal(x->data, s.x, sizeof s.x);                        /* its neighbours are others */
    assert_memory_not_equal((uint16_t *)x->data + 2 * ROWS * WIDTH, s.x, sizeof s.x);
    for (int row = 0; row < 3 * ROWS; row++) { /* every row keeps its own index */
        int from = (((uint16_t *)x->data)[row * WIDTH] - 0x1000) / WIDTH;
        assert_int_equal(((int32_t *)index->data)[row], s.index[from]);
        assert_int_equal(((uint16_t *)out.grad[H3_NODE_NORM1].data)[row * WIDTH], 0x2000 + from * WIDTH);
    }
    assert_memory_equal(out.value[H3_NODE_ADALN].data, s.table, sizeof s.table);
    assert_int_equal(out.value[H3_VALUE_TEMB].shape[0], 3 * TIMES);
    h3_batch_state_free(&out, h3_device_cpu());
}

static void test_negated_neighbours(void **state)
{
    (void)state;
    source s;
    h3_block_state plain, negated;
    make_source(&s);
    h3_batch_variant v = {.items = 2, .position = 1};
    assert_good(h3_batch_state(&plain, h3_device_cpu(), &s.state, &v, 0));
    v.negated = 1;
    assert_good(h3_batch_state(&negated, h3_device_cpu(), &s.state, &v, 0));
    const uint16_t *a = plain.value[H3_VALUE_X].data, *b = negated.value[H3_VALUE_X].data;
    for (int i = 0; i < 2 * ROWS * WIDTH; i++) assert_int_equal(b[i], i < ROWS * WIDTH ? a[i] ^ 0x8000 : a[i]);
    assert_memory_equal(plain.value[H3_VALUE_INDEX].data, negated.value[H3_VALUE_INDEX].data, 2 * ROWS * sizeof(int32_t));
    assert_true(((float *)negated.value[H3_VALUE_TEMB].data)[0] == -((float *)plain.value[H3_VALUE_TEMB].data)[0]);
    h3_batch_state_free(&plain, h3_device_cpu());
    h3_batch_state_free(&negated, h3_device_cpu());
}

/* More rows than there are wrap around; attention's keys and values stay whole. */
static void test_row_counts(void **state)
{
    (void)state;
    source s;
    h3_block_state out;
    make_source(&s);
    h3_batch_variant v = {.items = 1, .rows = 2 * ROWS + 1, .offset = 4};
    assert_good(h3_batch_state(&out, h3_device_cpu(), &s.state, &v, 1));
    assert_int_equal(out.value[H3_NODE_ROPE_Q].shape[0], 2 * ROWS + 1);
    assert_int_equal(out.value[H3_NODE_ROPE_K].shape[0], ROWS);
    assert_memory_equal(out.value[H3_NODE_ROPE_K].data, s.q, sizeof s.q);
    for (int row = 0; row < 2 * ROWS + 1; row++)
        assert_int_equal(((uint16_t *)out.value[H3_VALUE_X].data)[row * WIDTH], 0x1000 + (row + 4) % ROWS * WIDTH);
    h3_batch_state_free(&out, h3_device_cpu());
    assert_good(h3_batch_state(&out, h3_device_cpu(), &s.state, &v, 0));
    assert_int_equal(out.value[H3_NODE_ROPE_K].shape[0], 2 * ROWS + 1);
    h3_batch_state_free(&out, h3_device_cpu());
}

static int64_t first_difference(const source *s, const h3_tensor *batched, const h3_batch_variant *variant)
{
    int64_t row = -2;
    assert_good(h3_batch_first_difference(&row, h3_device_cpu(), &s->state.value[H3_VALUE_X], batched, variant, ROWS));
    return row;
}

static void test_first_difference(void **state)
{
    (void)state;
    source s;
    h3_block_state out;
    make_source(&s);
    h3_batch_variant variants[] = {{.items = 3, .position = 2}, {.items = 1, .rows = 5, .offset = 8}, {.items = 1, .rows = 30}};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        assert_good(h3_batch_state(&out, h3_device_cpu(), &s.state, &variants[i], 0));
        h3_tensor *x = &out.value[H3_VALUE_X];
        assert_int_equal(first_difference(&s, x, &variants[i]), -1);
        uint16_t *item = (uint16_t *)x->data + variants[i].position * ROWS * WIDTH;
        item[3 * WIDTH + 2] ^= 1; /* row 3 of the item is packed row 3 + offset */
        assert_int_equal(first_difference(&s, x, &variants[i]), (3 + variants[i].offset) % ROWS);
        item[3 * WIDTH + 2] ^= 1;
        if (variants[i].items > 1) { /* what a neighbour holds does not count */
            ((uint16_t *)x->data)[0] ^= 1;
            assert_int_equal(first_difference(&s, x, &variants[i]), -1);
        }
        h3_batch_state_free(&out, h3_device_cpu());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants_of_the_specification), cmocka_unit_test(test_gathered_rows), cmocka_unit_test(test_negated_neighbours),
        cmocka_unit_test(test_row_counts), cmocka_unit_test(test_first_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
