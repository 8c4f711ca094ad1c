/* Files that appear whole or not at all: every system call of a publication fails in turn. */
#include "store_files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/json.h"

/* These stand before the C library's. Each can be told to fail: `countdown` calls from now. */
static struct {
    const char *call;
    int countdown, error;
    size_t at_most; /* bytes that a write accepts; 0: all */
} fault;

static int is_due(const char *call)
{
    if (fault.call == NULL || strcmp(fault.call, call) != 0 || --fault.countdown != 0) return 0;
    errno = fault.error;
    return 1;
}

int fsync(int file) { return is_due("fsync") ? -1 : (int)syscall(SYS_fsync, file); }

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return is_due("renameat") ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0u);
}

/* ENOENT: somebody removes the file just before it is locked. */
int flock(int file, int operation)
{
    if (is_due("flock")) {
        char descriptor[64], path[H3_PATH_MAX] = "";
        if (fault.error != ENOENT) return -1;
        snprintf(descriptor, sizeof descriptor, "/proc/self/fd/%d", file);
        if (readlink(descriptor, path, sizeof path - 1) < 0 || unlink(path) != 0) abort();
    }
    return (int)syscall(SYS_flock, file, operation);
}

ssize_t write(int file, const void *data, size_t size)
{
    if (is_due("write")) return fault.error == 0 ? 0 : -1;
    return syscall(SYS_write, file, data, fault.at_most > 0 && size > fault.at_most ? fault.at_most : size);
}

static int clear_fault(void **state)
{
    memset(&fault, 0, sizeof fault);
    return remove_scratch(state);
}

static void assert_content(const char *path, const char *text)
{
    size_t size;
    char *data = read_file(path, &size);
    assert_int_equal(size, strlen(text));
    assert_memory_equal(data, text, size);
    free(data);
}

static void publishes_and_replaces(void **state)
{
    (void)state;
    const char *path = in_scratch("file");
    int descriptors = count_descriptors();
    assert_good(h3_publish(path, "first", 5));
    assert_content(path, "first");
    assert_good(h3_publish(path, "the second", 10));
    assert_content(path, "the second");
    assert_good(h3_publish(path, "", 0));
    assert_content(path, "");
    assert_int_equal(count_entries(scratch), 1);
    assert_int_equal(count_descriptors(), descriptors);
}

static void publishes_beside_the_working_directory(void **state)
{
    (void)state;
    char before[H3_PATH_MAX];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch), 0);
    h3_status status = h3_publish("bare", "x", 1);
    assert_int_equal(chdir(before), 0);
    assert_good(status);
    assert_content(in_scratch("bare"), "x");
}

static void replaces_a_symlink_and_not_its_target(void **state)
{
    (void)state;
    write_text(in_scratch("target"), "untouched");
    assert_int_equal(symlink("target", in_scratch("link")), 0);
    assert_good(h3_publish(in_scratch("link"), "new", 3));
    assert_content(in_scratch("target"), "untouched");
    assert_content(in_scratch("link"), "new");
}

/* As root a rename would put a file in the place of /dev/null. */
static void replaces_no_device_or_pipe(void **state)
{
    struct stat info;
    (void)state;
    assert_int_equal(mkfifo(in_scratch("pipe"), 0600), 0);
    assert_int_equal(symlink("pipe", in_scratch("link")), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(h3_publish(in_scratch(i == 0 ? "pipe" : "link"), "x", 1), H3_USAGE);
        assert_non_null(strstr(h3_error_text(), "give the name of a file"));
    }
    assert_int_equal(lstat(in_scratch("pipe"), &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    assert_int_equal(lstat(in_scratch("link"), &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(count_entries(scratch), 2);
}

/* A failing call leaves the old file, no temporary, no open descriptor, and a message with the path. */
static void fails_cleanly(const char *call, int countdown, int error, int old_stays)
{
    const char *path = in_scratch("file");
    fault.call = NULL;
    assert_good(h3_publish(path, "old", 3));
    int descriptors = count_descriptors();
    fault.call = call;
    fault.countdown = countdown;
    fault.error = error;
    assert_fails(h3_publish(path, "new content", 11), H3_ENVIRONMENT, path);
    fault.call = NULL;
    assert_content(path, old_stays ? "old" : "new content");
    assert_int_equal(count_entries(scratch), 1);
    assert_int_equal(count_descriptors(), descriptors);
}

static void every_call_that_fails_leaves_the_old_file(void **state)
{
    (void)state;
    fails_cleanly("write", 1, ENOSPC, 1);
    fails_cleanly("write", 1, 0, 1); /* accepts nothing, for ever */
    fails_cleanly("fsync", 1, EIO, 1);
    fails_cleanly("renameat", 1, EXDEV, 1);
    fails_cleanly("fsync", 2, EIO, 0); /* the folder's: the file is in place already */
    fault.at_most = 4;
    fails_cleanly("write", 2, ENOSPC, 1);
}

static void short_and_interrupted_writes_go_on(void **state)
{
    (void)state;
    fault.at_most = 3;
    assert_good(h3_publish(in_scratch("file"), "twenty characters ..", 20));
    assert_content(in_scratch("file"), "twenty characters ..");
    fault.call = "write";
    fault.countdown = 2;
    fault.error = EINTR;
    assert_good(h3_publish(in_scratch("file"), "ten chars.", 10));
    assert_int_equal(fault.countdown < 0, 1); /* it did happen */
    assert_content(in_scratch("file"), "ten chars.");
}

/* Folders that cannot be fsynced and file systems without locks are no failures. */
static void tolerates_what_a_file_system_lacks(void **state)
{
    (void)state;
    fault.call = "fsync";
    fault.countdown = 2;
    fault.error = EINVAL;
    assert_good(h3_publish(in_scratch("file"), "a", 1));
    fault.call = "flock";
    fault.countdown = 1;
    fault.error = ENOSYS;
    assert_good(h3_publish(in_scratch("file"), "b", 1));
    assert_content(in_scratch("file"), "b");
}

/* A cleaner that takes the new temporary before its writer does: the writer takes another name. */
static void a_lost_temporary_is_replaced(void **state)
{
    (void)state;
    static const int ways[] = {EWOULDBLOCK, ENOENT}; /* locked by the cleaner now; removed already */
    for (size_t i = 0; i < 2; i++) {
        fault.call = "flock";
        fault.countdown = 1;
        fault.error = ways[i];
        assert_good(h3_publish(in_scratch("file"), "c", 1));
        assert_int_equal(fault.countdown, -1); /* a second one was taken */
        assert_content(in_scratch("file"), "c");
        assert_int_equal(count_entries(scratch), 1);
    }
}

static void refuses_what_cannot_be(void **state)
{
    (void)state;
    write_text(in_scratch("file"), "x");
    assert_int_equal(mkdir(in_scratch("folder"), 0777), 0);
    write_text(in_scratch("folder/content"), "x");
    assert_fails(h3_publish(in_scratch("absent/file"), "a", 1), H3_ENVIRONMENT, "absent/file");
    assert_fails(h3_publish(in_scratch("file/below"), "a", 1), H3_ENVIRONMENT, "file/below");
    assert_fails(h3_publish(in_scratch("folder"), "a", 1), H3_ENVIRONMENT, "folder");
    assert_fails(h3_publish(in_scratch("folder/"), "a", 1), H3_USAGE, "does not name a file");
    assert_fails(h3_publish("/dev/full/x", "a", 1), H3_ENVIRONMENT, "/dev/full/x");
    assert_int_equal(count_entries(scratch), 2);
    assert_int_equal(count_entries(in_scratch("folder")), 1);
}

/* What others write into a pending file by its path gets the name, or nothing does. */
static void others_fill_a_pending_file(void **state)
{
    (void)state;
    const char *path = in_scratch("file");
    char temporary[H3_PATH_MAX];
    int descriptors = count_descriptors();
    h3_pending pending;
    assert_good(h3_publish(path, "old", 3));
    for (int keep = 0; keep < 2; keep++) {
        assert_good(h3_pending_open(&pending, path));
        assert_good(h3_pending_path(temporary, &pending));
        write_text(temporary, "of others");
        assert_good(h3_clean_temporaries(scratch, 0)); /* its writer lives */
        assert_content(temporary, "of others");
        assert_content(path, "old");
        if (keep) assert_good(h3_pending_publish(&pending));
        else h3_pending_abandon(&pending);
        assert_content(path, keep ? "of others" : "old");
        assert_int_equal(count_entries(scratch), 1);
        assert_int_equal(count_descriptors(), descriptors);
    }
}

static void a_pending_file_has_its_folder(void **state)
{
    (void)state;
    char before[H3_PATH_MAX], path[H3_PATH_MAX];
    h3_pending pending;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(scratch), 0);
    h3_status status = h3_pending_open(&pending, "bare");
    if (status == H3_OK) status = h3_pending_path(path, &pending);
    int is_beside = access(path, W_OK) == 0 && strchr(path, '/') == NULL;
    if (status == H3_OK) status = h3_pending_publish(&pending);
    assert_int_equal(chdir(before), 0);
    assert_good(status);
    assert_true(is_beside);
    assert_content(in_scratch("bare"), "");
    assert_int_equal(mkfifo(in_scratch("pipe"), 0600), 0);
    assert_fails(h3_pending_open(&pending, in_scratch("pipe")), H3_USAGE, "give the name of a file");
    assert_fails(h3_pending_open(&pending, in_scratch("absent/file")), H3_ENVIRONMENT, "absent/file");
    assert_int_equal(count_entries(scratch), 2);
}

/* Without any interposed call: a limit of the operating system. */
static void no_space_leaves_the_old_file(void **state)
{
    (void)state;
    struct rlimit before, limit;
    char *large = calloc(1, 1 << 20);
    assert_good(h3_publish(in_scratch("file"), "old", 3));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    h3_status status = h3_publish(in_scratch("file"), large, 1 << 20);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    free(large);
    assert_fails(status, H3_ENVIRONMENT, "file");
    assert_content(in_scratch("file"), "old");
    assert_int_equal(count_entries(scratch), 1);
}

static void json_has_the_size_and_hash_of_its_bytes(void **state)
{
    (void)state;
    int64_t size;
    char sha256[H3_SHA256_HEX], direct[H3_SHA256_HEX];
    cJSON *value = cJSON_CreateObject();
    cJSON_AddNumberToObject(value, "a", 0.1);
    h3_status status = h3_publish_json(in_scratch("x.json"), value, &size, sha256);
    h3_status again = h3_publish_json(in_scratch("y.json"), value, NULL, NULL);
    cJSON_Delete(value);
    assert_good(status);
    assert_good(again);
    assert_content(in_scratch("x.json"), "{\n  \"a\": 0.1\n}\n");
    assert_content(in_scratch("y.json"), "{\n  \"a\": 0.1\n}\n");
    assert_int_equal(size, 15);
    assert_good(h3_sha256(direct, "{\n  \"a\": 0.1\n}\n", 15));
    assert_string_equal(sha256, direct);
}

/* Killed between its first byte and its rename, a writer leaves a temporary and no file; its lock dies with it. */
static void a_killed_writer_leaves_a_temporary_that_is_cleaned(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_scratch("deep"), 0777), 0);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {1000, 1000}, no_core = {0, 0};
        static char large[4096];
        setrlimit(RLIMIT_CORE, &no_core);
        setrlimit(RLIMIT_FSIZE, &limit); /* SIGXFSZ kills it in the write */
        h3_publish(in_scratch("deep/file"), large, sizeof large);
        _exit(0);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result));
    assert_false(is_there(in_scratch("deep/file")));
    assert_int_equal(count_entries(in_scratch("deep")), 1);
    assert_good(h3_clean_temporaries(scratch, 0)); /* not deep */
    assert_int_equal(count_entries(in_scratch("deep")), 1);
    assert_good(h3_clean_temporaries(scratch, 1));
    assert_int_equal(count_entries(in_scratch("deep")), 0);
}

static void cleaning_spares_the_living_and_the_others(void **state)
{
    (void)state;
    write_text(in_scratch(".tmp-dead"), "x");
    write_text(in_scratch(".tmp-living"), "x");
    write_text(in_scratch("tmp-other"), "x");
    assert_int_equal(symlink("tmp-other", in_scratch(".tmp-link")), 0);
    int living = open(in_scratch(".tmp-living"), O_RDWR | O_CLOEXEC);
    assert_true(living >= 0);
    assert_int_equal(flock(living, LOCK_EX), 0);
    assert_good(h3_clean_temporaries(scratch, 0));
    assert_false(is_there(in_scratch(".tmp-dead")));
    assert_true(is_there(in_scratch(".tmp-living")));
    assert_true(is_there(in_scratch("tmp-other")));
    assert_true(is_there(in_scratch(".tmp-link")));
    close(living);
    assert_good(h3_clean_temporaries(scratch, 0));
    assert_false(is_there(in_scratch(".tmp-living")));
    assert_good(h3_clean_temporaries(in_scratch("absent"), 1));
}

static void makes_folders(void **state)
{
    (void)state;
    int descriptors = count_descriptors();
    assert_good(h3_make_folders(in_scratch("a/b/c")));
    assert_good(h3_make_folders(in_scratch("a/b//c/")));
    assert_true(is_there(in_scratch("a/b/c")));
    write_text(in_scratch("a/file"), "x");
    assert_fails(h3_make_folders(in_scratch("a/file/d")), H3_ENVIRONMENT, "a/file/d");
    assert_fails(h3_make_folders(in_scratch("a/file")), H3_ENVIRONMENT, "a/file");
    assert_fails(h3_make_folders(""), H3_USAGE, "empty");
    assert_int_equal(symlink(in_scratch("a"), in_scratch("link")), 0);
    assert_good(h3_make_folders(in_scratch("link/e"))); /* what exists may be reached through a symlink */
    assert_true(is_there(in_scratch("a/e")));
    assert_int_equal(symlink("nowhere", in_scratch("dangling")), 0);
    assert_fails(h3_make_folders(in_scratch("dangling/f")), H3_ENVIRONMENT, "dangling/f");
    assert_false(is_there(in_scratch("nowhere")));
    assert_fails(h3_make_folders("/proc/nothing/here"), H3_ENVIRONMENT, "/proc/nothing/here");
    assert_int_equal(count_descriptors(), descriptors);
}

static void removes_trees_without_following(void **state)
{
    (void)state;
    assert_good(h3_make_folders(in_scratch("a/b/c")));
    assert_good(h3_make_folders(in_scratch("kept")));
    write_text(in_scratch("kept/file"), "x");
    write_text(in_scratch("a/b/file"), "x");
    assert_int_equal(symlink(in_scratch("kept"), in_scratch("a/link")), 0);
    assert_int_equal(mkfifo(in_scratch("a/fifo"), 0666), 0);
    assert_good(h3_remove_tree(in_scratch("a")));
    assert_false(is_there(in_scratch("a")));
    assert_true(is_there(in_scratch("kept/file")));
    assert_int_equal(symlink(in_scratch("kept"), in_scratch("link")), 0);
    assert_good(h3_remove_tree(in_scratch("link")));
    assert_true(is_there(in_scratch("kept/file")));
    assert_good(h3_remove_tree(in_scratch("kept/file")));
    assert_false(is_there(in_scratch("kept/file")));
    assert_good(h3_remove_tree(in_scratch("absent")));
    assert_fails(h3_remove_tree("/proc/self/status"), H3_ENVIRONMENT, "/proc/self/status");
}

static void checks_relative_paths(void **state)
{
    static const char *const good[] = {"a", "a/b", "data/node.block0.q_proj", "..a", "a..", "...", ".tmp-x", "\xc3\xa4"};
    static const char *const bad[] = {"",   "/",    "/a",     "a/",    "a//b", ".",      "..",     "./a",    "a/.",
                                      "../a", "a/..", "a/../b", "a/./b", "a\\b", "a\nb", "a\x7f", "a\x01/b", "//"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_good(h3_check_relative(good[i], "here"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (h3_check_relative(bad[i], "here.json") != H3_INTEGRITY) fail_msg("\"%s\" is accepted", bad[i]);
        assert_non_null(strstr(h3_error_text(), "here.json"));
    }
}

#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, make_scratch, clear_fault)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(publishes_and_replaces),
        SCRATCH_TEST(publishes_beside_the_working_directory),
        SCRATCH_TEST(replaces_a_symlink_and_not_its_target),
        SCRATCH_TEST(replaces_no_device_or_pipe),
        SCRATCH_TEST(every_call_that_fails_leaves_the_old_file),
        SCRATCH_TEST(short_and_interrupted_writes_go_on),
        SCRATCH_TEST(tolerates_what_a_file_system_lacks),
        SCRATCH_TEST(a_lost_temporary_is_replaced),
        SCRATCH_TEST(refuses_what_cannot_be),
        SCRATCH_TEST(others_fill_a_pending_file),
        SCRATCH_TEST(a_pending_file_has_its_folder),
        SCRATCH_TEST(no_space_leaves_the_old_file),
        SCRATCH_TEST(json_has_the_size_and_hash_of_its_bytes),
        SCRATCH_TEST(a_killed_writer_leaves_a_temporary_that_is_cleaned),
        SCRATCH_TEST(cleaning_spares_the_living_and_the_others),
        SCRATCH_TEST(makes_folders),
        SCRATCH_TEST(removes_trees_without_following),
        cmocka_unit_test(checks_relative_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
