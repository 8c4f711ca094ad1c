/* A plan that requires previews is refused at once where they cannot be made. */
#include "golden_files.h"

#include <sys/stat.h>

#include "qualify/preflight.h"
#include "store/publish.h"

static char folder[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/h3-preflight-XXXXXX");
    return mkdtemp(folder) == NULL || setenv("H3_BIN", folder, 1) != 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return h3_remove_tree(folder) != H3_OK;
}

/* $H3_BIN/h3_preview is this text. */
static void put_program(const char *text, mode_t mode)
{
    char path[256];
    snprintf(path, sizeof path, "%s/h3_preview", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static h3_status check(int preview, const char *json)
{
    h3_plan plan = {.preview = preview, .json = cJSON_Parse(json)};
    assert_non_null(plan.json);
    snprintf(plan.path, sizeof plan.path, "plans/test.json");
    plan.generation = cJSON_GetObjectItemCaseSensitive(plan.json, "generation");
    h3_status status = h3_preflight_preview(&plan);
    cJSON_Delete(plan.json);
    return status;
}

#define WHOLE "{\"generation\": {}, \"decoders\": {\"video\": {}, \"audio\": {}}}"

static void what_is_not_required_is_not_looked_for(void **state)
{
    (void)state;
    assert_good(check(H3_PREVIEW_OFF, WHOLE));
    assert_good(check(H3_PREVIEW_IF_AVAILABLE, "{}"));
}

static void what_is_required_must_be_there(void **state)
{
    (void)state;
    assert_fails(check(H3_PREVIEW_REQUIRED, WHOLE), H3_ENVIRONMENT, "there is no program");
    put_program("#!/bin/sh\nexit 0\n", 0600);
    assert_fails(check(H3_PREVIEW_REQUIRED, WHOLE), H3_ENVIRONMENT, "there is no program");
    put_program("#!/bin/sh\n[ \"$*\" = --check ]\n", 0700);
    assert_good(check(H3_PREVIEW_REQUIRED, WHOLE));
    put_program("#!/bin/sh\nexit 4\n", 0700);
    assert_fails(check(H3_PREVIEW_REQUIRED, WHOLE), H3_ENVIRONMENT, "--check fails");
    put_program("#!/bin/sh\nkill -9 $$\n", 0700);
    assert_fails(check(H3_PREVIEW_REQUIRED, WHOLE), H3_ENVIRONMENT, "--check fails");
    put_program("#!/nowhere/sh\n", 0700);
    assert_fails(check(H3_PREVIEW_REQUIRED, WHOLE), H3_ENVIRONMENT, "does not start");
}

static void there_must_be_something_to_show(void **state)
{
    static const char *const plans[] = {"{}", "{\"decoders\": {\"video\": {}, \"audio\": {}}}", "{\"generation\": {}}", "{\"generation\": {}, \"decoders\": {\"video\": {}}}",
                                        "{\"generation\": {}, \"decoders\": 5}"};
    (void)state;
    put_program("#!/bin/sh\nexit 0\n", 0700);
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) assert_fails(check(H3_PREVIEW_REQUIRED, plans[i]), H3_USAGE, "nothing is decoded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_not_required_is_not_looked_for, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(what_is_required_must_be_there, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(there_must_be_something_to_show, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
