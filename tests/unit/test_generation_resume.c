/* A generation that is interrupted and goes on: the same bytes, and no state that is damaged or somebody else's. */
#include "generation_nano.h"

#include "qualify/generation_store.h"
#include "store/publish.h"

static char folder[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/h3-resume-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

/* One run of nano, two seeds and their repeats, 13 grid points: a safe point after every step. */
typedef struct attempt {
    nano n;
    h3_plan plan;
    cJSON *model;
    h3_run run;
    h3_generation_record record;
    h3_resume resume;
    h3_sampling sampling;
    int64_t stop_at; /* the save at this step is the last thing that happens */
} attempt;

static h3_status save_and_stop(void *user, const h3_sampling *sampling, int64_t step)
{
    attempt *a = user;
    H3_TRY(h3_resume_save(&a->resume, sampling, step));
    return step == a->stop_at ? h3_error(H3_STOPPED, "stopped") : H3_OK;
}

static int64_t points = 13;

static void start(attempt *a, const char *plan_sha256, int repeat, int64_t stop_at)
{
    memset(a, 0, sizeof *a);
    nano_open(&a->n, H3_BF16, points, 2, NULL);
    snprintf(a->plan.sha256, sizeof a->plan.sha256, "%s", plan_sha256);
    a->model = cJSON_CreateObject();
    a->record = (h3_generation_record){"provider",           folder, &a->plan, &a->n.generation, a->model, &a->n.provider, NULL,
                                       a->n.model.operators, repeat, NULL, NULL};
    assert_good(h3_resume_open(&a->resume, &a->record, &a->run));
    assert_good(h3_sampling_new(&a->sampling, &a->n.generation, &a->n.inputs, &a->n.model, NULL, repeat));
    a->sampling.save = save_and_stop;
    a->sampling.user = a;
    a->stop_at = stop_at;
}

static void end(attempt *a)
{
    h3_sampling_free(&a->sampling);
    h3_resume_close(&a->resume);
    cJSON_Delete(a->model);
    nano_close(&a->n);
}

static void interrupt_at(int64_t step)
{
    attempt a;
    start(&a, "plan", 1, step);
    assert_fails(h3_sampling_run(&a.sampling), H3_STOPPED, "stopped");
    end(&a);
}

static void same_bytes(const h3_sampling *x, const h3_sampling *y)
{
    assert_int_equal(x->flow_count, y->flow_count);
    for (size_t f = 0; f < x->flow_count; f++) {
        const h3_flow *a = &x->flows[f], *b = &y->flows[f];
        const h3_tensor *left[] = {&a->video, &a->audio, &a->start_video, &a->velocity_video, &a->velocity_audio};
        const h3_tensor *right[] = {&b->video, &b->audio, &b->start_video, &b->velocity_video, &b->velocity_audio};
        for (int i = 0; i < 5; i++)
            if (left[i]->data != NULL && (i < 3 || !a->repeat)) /* a repeat's velocities are kept until the next ones come */
                assert_memory_equal(left[i]->data, right[i]->data, h3_tensor_bytes(left[i]));
        assert_memory_equal(a->digests, b->digests, (size_t)x->steps * sizeof *a->digests);
    }
}

static void it_goes_on_to_the_same_bytes(void **state)
{
    attempt whole, first, second;
    const char *note;
    int64_t step;
    (void)state;
    start(&whole, "plan", 1, -1);
    assert_good(h3_sampling_run(&whole.sampling));
    assert_good(h3_resume_remove(&whole.resume));
    interrupt_at(5);
    /* The second attempt is interrupted as well. */
    start(&first, "plan", 1, 9);
    assert_good(h3_resume_load(&first.resume, &first.sampling, &step, &note));
    assert_int_equal(step, 5);
    assert_null(note);
    assert_int_equal(first.sampling.first_step, 5);
    assert_fails(h3_sampling_run(&first.sampling), H3_STOPPED, "stopped");
    end(&first);
    start(&second, "plan", 1, -1);
    assert_good(h3_resume_load(&second.resume, &second.sampling, &step, &note));
    assert_int_equal(step, 9);
    assert_good(h3_sampling_run(&second.sampling));
    same_bytes(&whole.sampling, &second.sampling);
    end(&whole);
    end(&second);
}

/* Before decoding the last step is saved too, though it is no safe point: 25 steps, one every two. */
static void it_goes_on_after_the_last_step(void **state)
{
    attempt whole, again;
    const char *note;
    int64_t step;
    (void)state;
    points = 26;
    start(&whole, "plan", 1, -1);
    assert_int_equal(whole.sampling.safe_steps, 2);
    assert_good(h3_sampling_run(&whole.sampling));
    assert_good(h3_resume_save(&whole.resume, &whole.sampling, 25));
    start(&again, "plan", 1, -1);
    assert_good(h3_resume_load(&again.resume, &again.sampling, &step, &note));
    assert_null(note);
    assert_int_equal(step, 25);
    assert_good(h3_sampling_run(&again.sampling));
    same_bytes(&whole.sampling, &again.sampling);
    end(&again);
    /* Without its last file the state does not say what it says. */
    char path[H3_PATH_MAX];
    assert_good(h3_path(path, "%.200s/steps-000025.h5", whole.resume.folder));
    assert_int_equal(unlink(path), 0);
    start(&again, "plan", 1, -1);
    assert_fails(h3_resume_load(&again.resume, &again.sampling, &step, &note), H3_INTEGRITY, "steps-000025.h5");
    assert_good(h3_resume_remove(&again.resume));
    end(&again);
    end(&whole);
    points = 13;
}

/* Rows that were not taken from the state would show. */
static void the_rows_are_the_states(void **state)
{
    attempt changed;
    const char *note;
    int64_t step;
    (void)state;
    interrupt_at(5);
    start(&changed, "plan", 1, -1);
    assert_good(h3_resume_load(&changed.resume, &changed.sampling, &step, &note));
    ((float *)changed.sampling.flows[0].audio.data)[3] += 1.0f;
    assert_fails(h3_sampling_run(&changed.sampling), H3_FAILED, "seed 42 step 5: the repeat gives another");
    end(&changed);
}

static void expect_note(const char *plan, int repeat, const char *word)
{
    attempt a;
    const char *note;
    int64_t step;
    start(&a, plan, repeat, -1);
    assert_good(h3_resume_load(&a.resume, &a.sampling, &step, &note));
    assert_int_equal(step, 0);
    assert_non_null(note);
    assert_non_null(strstr(note, word));
    assert_int_equal(a.sampling.first_step, 0);
    assert_int_not_equal(access(a.resume.folder, F_OK), 0);
    end(&a);
}

static void a_foreign_state_is_dropped(void **state)
{
    (void)state;
    expect_note("plan", 1, "no saved state");
    interrupt_at(2);
    expect_note("other plan", 1, "another plan");
    interrupt_at(2);
    expect_note("plan", 0, "another build, machine, input or kind of run");
}

static void flip(const char *name, size_t offset)
{
    char path[256];
    snprintf(path, sizeof path, "%s/data/generate/provider/resume/%s", folder, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    fputc(byte ^ 1, file);
    assert_int_equal(fclose(file), 0);
}

static void expect_damage(const char *word)
{
    attempt a;
    const char *note;
    int64_t step;
    start(&a, "plan", 1, -1);
    assert_fails(h3_resume_load(&a.resume, &a.sampling, &step, &note), H3_INTEGRITY, word);
    end(&a);
}

static void change_state(const char *from, const char *to)
{
    char path[256], *text, *changed;
    size_t size;
    snprintf(path, sizeof path, "%s/data/generate/provider/resume/state.json", folder);
    assert_good(h3_file_read(&text, &size, path, 1 << 20, H3_INTEGRITY));
    char *at = strstr(text, from);
    assert_non_null(at);
    assert_good(h3_format(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)));
    assert_good(h3_publish(path, changed, strlen(changed)));
    free(text);
    free(changed);
}

static void a_damaged_state_is_named(void **state)
{
    char path[256];
    (void)state;
    interrupt_at(3);
    flip("steps-000002.h5", 5000);
    expect_damage("steps-000002.h5");
    flip("steps-000002.h5", 5000);
    change_state("\"step\": 3", "\"step\": 2");
    expect_damage("other files than its step 2");
    change_state("\"step\": 2", "\"step\": 4");
    expect_damage("other files than its step 4");
    change_state("\"step\": 4", "\"step\": 100");
    expect_damage("step");
    change_state("\"step\": 100", "\"step\": 3");
    change_state("steps-000001.h5", "../steps.h5");
    expect_damage("lists ../steps.h5 where a file of steps 1 to");
    change_state("../steps.h5", "steps-000001.h5");
    snprintf(path, sizeof path, "%s/data/generate/provider/resume/steps-000001.h5", folder);
    assert_int_equal(unlink(path), 0);
    expect_damage("steps-000001.h5");
    flip("state.json", 0);
    expect_damage("state.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(it_goes_on_to_the_same_bytes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(it_goes_on_after_the_last_step, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(the_rows_are_the_states, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_foreign_state_is_dropped, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_damaged_state_is_named, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
