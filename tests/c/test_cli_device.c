/* The command line on a device whose memory is not the host's: the stand-in of tests/standin, whose calls the CPU
 * makes. Every command must print what it prints on the CPU, and touch, leave and lose no device memory. */
#define _GNU_SOURCE /* mkdtemp */
#include "support.h"

#include "io/npy.h"

#include <sys/wait.h>
#include <unistd.h>

#define MOST 48 /* words of a command */
#define TEXT (1 << 18)

enum { V = 203, D = 24, B = 5 }; /* of the files */
static char folder[512];

/* Runs the program on these words, with libcuda.so.1 from `driver`; returns its exit code, or 128 + a signal, and what
 * it printed on stdout and stderr. */
static int run(const char *driver, const char *const *words, char *text) {
    int ends[2], status;
    size_t used = 0;
    ssize_t got;
    if (pipe(ends) != 0) fail_msg("no pipe");
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        setenv("LD_LIBRARY_PATH", driver, 1);
        setenv("FLASHSAMPLING_CHECK_POINTERS", "1", 1);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        if (chdir(folder) != 0) _exit(126);
        execv(FS_PROGRAM, (char *const *)(uintptr_t)words);
        _exit(127);
    }
    close(ends[1]);
    while ((got = read(ends[0], text + used, TEXT - 1 - used)) > 0) used += (size_t)got;
    text[used] = 0;
    close(ends[0]);
    if (child < 0 || waitpid(child, &status, 0) != child) fail_msg("no process");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The words of a command, which spaces part, and behind them those of `more`. */
static void split(const char *command, const char *more, char *memory, const char **words) {
    int n = 0;
    snprintf(memory, 2048, "flashsample %s %s", command, more);
    for (char *word = strtok(memory, " "); word && n < MOST - 1; word = strtok(NULL, " ")) words[n++] = word;
    words[n] = NULL;
}

static int run_command(const char *command, const char *more, char *text) {
    char memory[2048];
    const char *words[MOST];
    split(command, more, memory, words);
    return run(FS_DRIVER, words, text);
}

static char on_cpu[TEXT], on_device[TEXT];

static void prints_the_same(const char *command, int code) {
    const int cpu = run_command(command, "--backend cpu", on_cpu);
    const int device = run_command(command, "--backend cuda", on_device);
    if (cpu != code || device != code) fail_msg("%s: exit codes %d, %d\n%s%s", command, cpu, device, on_cpu, on_device);
    if (strcmp(on_cpu, on_device) != 0) fail_msg("%s\n%s%s", command, on_cpu, on_device);
}

static void succeeds(const char *command, const char *word) {
    const int code = run_command(command, "--backend cuda --quiet", on_device);
    if (code != 0 || !strstr(on_device, word)) fail_msg("%s: exit code %d\n%s", command, code, on_device);
}

static void fails(const char *command, int code, const char *message) {
    const int got = run_command(command, "--backend cuda --quiet", on_device);
    if (got != code || !strstr(on_device, message) || strchr(on_device, '\n') != on_device + strlen(on_device) - 1)
        fail_msg("%s: exit code %d\n%s", command, got, on_device);
}

/* ----------------------------------------------------------------------------------------------------- sample ---- */

static void write_file(const char *name, npy_type type, int64_t rows, int64_t columns, void *data) {
    char path[640], error[NPY_ERROR_CHARS];
    npy_array a = {.type = type, .rank = columns ? 2 : 1, .shape = {rows, columns ? columns : 1, 1, 1}, .data = data};
    a.count = rows * a.shape[1];
    a.bytes = (size_t)a.count * npy_type_size(type);
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    if (npy_write(path, &a, error) != 0) fail_msg("%s", error);
}

static int make_files(void **state) {
    (void)state;
    static float w[V * D], h[B * D], logits[B * V], bias[V];
    static uint8_t allow[2 * V], seen[B * V];
    static int32_t counts[B * V];
    rng r = random_from(5);
    temporary_name(folder, sizeof folder);
    if (!mkdtemp(folder)) return -1;
    for (int i = 0; i < V * D; i++) w[i] = (float)random_normal(&r);
    for (int i = 0; i < B * D; i++) h[i] = (float)random_normal(&r);
    for (int i = 0; i < B * V; i++) {
        logits[i] = 3.0f * (float)random_normal(&r);
        seen[i] = random_below(&r, 3) == 0;
        counts[i] = (int32_t)random_below(&r, 3);
    }
    for (int i = 0; i < V; i++) bias[i] = (float)random_normal(&r);
    for (int i = 0; i < 2 * V; i++) allow[i] = random_below(&r, 2) == 0;
    write_file("w", NPY_F32, V, D, w);
    write_file("h", NPY_F32, B, D, h);
    write_file("logits", NPY_F32, B, V, logits);
    write_file("bias", NPY_F32, V, 0, bias);
    write_file("allow", NPY_U8, 2, V, allow);
    write_file("seen", NPY_U8, B, V, seen);
    write_file("counts", NPY_I32, B, V, counts);
    return 0;
}

static int drop_files(void **state) {
    (void)state;
    static const char *const names[] = {"w", "h", "logits", "bias", "allow", "seen", "counts", "out"};
    char path[640];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s.npy", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

#define FILES "sample --quiet --head w.npy --hidden h.npy "
#define LOGITS "sample --quiet --logits logits.npy "

static void every_array_of_a_call_reaches_the_device(void **state) {
    (void)state;
    static const char *const commands[] = {
        FILES,
        LOGITS,
        "sample --quiet --synthetic 1009,40,5 --seed 7",
        "sample --quiet --synthetic 1009,40,5 --dtype f16 --samples 7",
        "sample --quiet --synthetic 64,8,0",
        FILES "--temperature 0.8,1,0,0.5,2 --top-k 5,0,3,0,9 --top-p 0.9,1,1,0.5,0.99 --min-p 0,0.1,0,0,0.01",
        FILES "--seed 1,2,3,4,5 --position 6,7,8,9,10 --substream 1,0,1,0,3 --temperature 3",
        FILES "--bias bias.npy --scale 0.5 --softcap 20 --logprobs processed --top 3",
        LOGITS "--logprobs cut --top-k 20 --watch 7,3/9 --samples 3",
        LOGITS "--allow allow.npy --allow-index 0,1,-1,1,0",
        FILES "--edits 11:2.5,3/42:ban,0/7:-1 --logprobs raw",
        LOGITS "--seen seen.npy --repetition 1.3,1,2,1.1,1.5",
        LOGITS "--counts counts.npy --repetition 1.2 --frequency 0.1,0,0.3,1,2 --presence 0.5,0,0,1,1",
        FILES "--count-list 3:2,1/9:4 --frequency 0.5",
        LOGITS "--slot 2,0,-1,2,1 --temperature 0.5,1,4",
        FILES "--mode without-replacement --samples 6 --temperature 4",
        FILES "--mode score --score-tokens 1,2,3,4,5 --logprobs raw",
        LOGITS "--mode group-parallel --group-size 64",
        FILES "--mode group-online --group-size 64",
        LOGITS "--noise fast --i64 --out out.npy",
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) prints_the_same(commands[i], 0);
}

static void shards_and_screens_lie_on_the_device(void **state) {
    (void)state;
    static const char *const commands[] = {
        FILES "--shards 3 --logprobs raw --top 2",
        FILES "--shards 4 --watch 3,100 --temperature 2",
        FILES "--shards 3 --mode group-parallel",
        LOGITS "--shards 5 --top-p 0.9 --temperature 3",
        "sample --quiet --synthetic 3001,128,3 --screen 8",
        "sample --quiet --synthetic 3001,128,3 --screen 4 --top-k 20 --seed 3",
        "sample --quiet --synthetic 3001,128,3 --screen 8 --shards 3",
        /* Lists of 1,024 do not prove these cuts: they grow. */
        "sample --quiet --synthetic 9001,16,2 --shards 2 --top-p 0.999 --temperature 8",
    };
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) prints_the_same(commands[i], 0);
}

static void rows_without_a_token_end_the_program_as_on_the_cpu(void **state) {
    (void)state;
    prints_the_same(LOGITS "--temperature 1,1e-40,1,1,1", 2);
    fails("sample --synthetic 10,4,2 --mode group-online --group-size 4 --top-p 0.5,0.9", 3, "group mode");
}

/* --------------------------------------------------------------------------------------------- other commands ---- */

static void verify_accepts_what_the_device_draws(void **state) {
    (void)state;
    const int whole = test_size(1000) >= 1000;
    succeeds(whole ? "verify --draws 1000" : "verify --draws 1000 --rule top-k", " 0 rejected");
    succeeds(whole ? "verify --draws 1000 --screen 8" : "verify --draws 1000 --screen 8 --rule mask", " 0 rejected");
    succeeds("verify --draws 1000 --rule 3", " 0 rejected");
    assert_int_equal(
        run_command("verify --draws 4000 --rule plain --screen 8 --plant screen --quiet", "--backend cuda", on_device),
        1);
    assert_non_null(strstr(on_device, "not W's tokens"));
}

static void bench_and_demo_time_the_device(void **state) {
    (void)state;
    succeeds("bench --vocab 3001 --dim 64 --seconds 0 --batch 1,3 --copies 2", "of copying");
    assert_non_null(strstr(on_device, "Stand-in 0"));
    succeeds("bench --vocab 3001 --dim 128 --seconds 0 --batch 1 --copies 2 --screen 8 --top-p 0.9 --logprobs --json",
             "\"copy_bytes_per_s\"");
    succeeds("demo --vocab 3001 --dim 64 --seconds 0 --draws 1000 --device 1", "The draws follow the distribution.");
    assert_non_null(strstr(on_device, "Stand-in 1"));
    fails("bench --bars --vocab 3001 --seconds 0", 2, "--bars are those of the CPU backend");
}

/* ---------------------------------------------------------------------------------------------------- devices ---- */

static void info_shows_devices(void **state) {
    (void)state;
    assert_int_equal(run_command("info", "", on_device), 0);
    assert_non_null(strstr(on_device, "device 0     Stand-in 0, compute capability 9.0, 4.29 GB\n"
                                      "device 1     Stand-in 1, compute capability 9.1, 4.29 GB\n"));
    assert_non_null(strstr(on_device, "backends     cpu cuda reference\n"));
    assert_int_equal(run_command("info --json", "", on_device), 0);
    assert_non_null(strstr(on_device, "\"compute_capability\": \"9.1\""));
}

static void a_device_that_is_not_there_is_refused_by_name(void **state) {
    (void)state;
    static const char *const commands[] = {"sample --synthetic 10,4,2", "verify --draws 1000",
                                           "bench --vocab 100 --dim 16 --batch 1", "demo --vocab 300 --dim 16"};
    char with_device[128];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        snprintf(with_device, sizeof with_device, "%s --device 2", commands[i]);
        fails(with_device, 2, "--device 2: must lie in 0 .. 1, this machine has 2 CUDA devices\n");
        setenv("FS_STANDIN_DEVICES", "1", 1);
        fails(with_device, 2, "--device 2: must lie in 0 .. 0, this machine has 1 CUDA device\n");
        setenv("FS_STANDIN_DEVICES", "0", 1);
        fails(commands[i], 3, "needs a CUDA device, but the NVIDIA driver finds no device\n");
        setenv("FS_STANDIN_DEVICES", "-1", 1);
        fails(commands[i], 3, "but the NVIDIA driver says: no CUDA-capable device is detected (100)\n");
        unsetenv("FS_STANDIN_DEVICES");
    }
    const char *const words[] = {"flashsample", "sample", "--synthetic", "10,4,2", "--backend", "cuda", NULL};
    assert_int_equal(run(FS_DRIVER "/broken", words, on_device), 3);
    assert_non_null(strstr(on_device, "needs a CUDA device, but there is no NVIDIA driver here: "));
    assert_non_null(strstr(on_device, "libcuda.so.1"));
}

static void memory_that_is_not_there_is_refused_by_name(void **state) {
    (void)state;
    setenv("FS_STANDIN_BYTES", "100000", 1);
    fails("sample --synthetic 1000,64,2", 3,
          "no memory for W: 128000 bytes, CUDA device 0 has 100000 (out of memory)\n");
    unsetenv("FS_STANDIN_BYTES");
}

static void the_environment_chooses_the_device_too(void **state) {
    (void)state;
    setenv("FLASHSAMPLING_BACKEND", "cuda", 1);
    assert_int_equal(run_command("sample --synthetic 10,4,2", "", on_device), 0);
    assert_non_null(strstr(on_device, "a stand-in for device 0"));
    unsetenv("FLASHSAMPLING_BACKEND");
}

static void ranks_are_refused_by_name(void **state) {
    (void)state;
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    fails("demo --vocab 300 --dim 16", 2, "the cuda backend runs on one device: not under mpirun");
    setenv("FLASHSAMPLING_MPI", "none", 1); /* every process for itself */
    succeeds("sample --synthetic 10,4,2", "token");
    unsetenv("FLASHSAMPLING_MPI");
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_array_of_a_call_reaches_the_device),
        cmocka_unit_test(shards_and_screens_lie_on_the_device),
        cmocka_unit_test(rows_without_a_token_end_the_program_as_on_the_cpu),
        cmocka_unit_test(verify_accepts_what_the_device_draws),
        cmocka_unit_test(bench_and_demo_time_the_device),
        cmocka_unit_test(info_shows_devices),
        cmocka_unit_test(a_device_that_is_not_there_is_refused_by_name),
        cmocka_unit_test(memory_that_is_not_there_is_refused_by_name),
        cmocka_unit_test(the_environment_chooses_the_device_too),
        cmocka_unit_test(ranks_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
