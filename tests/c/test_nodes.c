/* Memory nodes: what the system says is read with suspicion, every block is scheduled once and at home where it can be,
 * and tokens do not depend on any of it. */
#define _GNU_SOURCE /* sched_getaffinity, mkdtemp */
#include "support.h"

#include "cpu/cpu_pass.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

/* A folder as /sys/devices/system/node is: `online`, and a list of cores for each node. */
static char folder[160];

static void write_file(const char *name, const char *text) {
    char path[192];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void make_folder(const char *online, const char *cores0, const char *cores1) {
    char path[192];
    temporary_name(folder, sizeof folder);
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/node%d", folder, i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    write_file("online", online);
    write_file("node0/cpulist", cores0);
    write_file("node1/cpulist", cores1);
}

static void delete_folder(void) {
    const char *const names[] = {"node0/cpulist", "node1/cpulist", "online", "node0", "node1", ""};
    for (int i = 0; i < 6; i++) {
        char path[192];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (i < 3) unlink(path);
        else rmdir(path);
    }
}

/* The first two cores this process may run on; the same twice if there is only one. */
static void two_cores(int *a, int *b) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    *a = *b = -1;
    for (int i = 0; i < FS_NODE_CORES && *b < 0; i++)
        if (CPU_ISSET((size_t)i, &set)) *(*a < 0 ? a : b) = i;
    if (*b < 0) *b = *a;
}

static void make_two_nodes(void) {
    char a[16], b[16];
    int first, second;
    two_cores(&first, &second);
    snprintf(a, sizeof a, "%d\n", first);
    snprintf(b, sizeof b, "%d\n", second);
    make_folder("0-1\n", a, b);
}

static int a_core_of_others(void) {
    cpu_set_t set;
    int core = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    while (core < FS_NODE_CORES && CPU_ISSET((size_t)core, &set)) core++;
    return core;
}

static void nodes_are_those_with_cores_we_may_use(void **state) {
    (void)state;
    fs_nodes nodes;
    char others[16];
    int a, b;
    two_cores(&a, &b);
    make_two_nodes();
    fs_nodes_find(folder, &nodes);
    assert_int_equal(nodes.count, 2);
    assert_int_equal(nodes.id[1], 1);
    assert_int_equal(nodes.cores[0], 1);
    assert_true(nodes.core[1][b / 64] >> b % 64 & 1);
    snprintf(others, sizeof others, "%d\n", a_core_of_others());
    write_file("node0/cpulist", others);
    fs_nodes_find(folder, &nodes);
    assert_int_equal(nodes.count, 1);
    assert_int_equal(nodes.id[0], 1);
    delete_folder();
    fs_nodes_find(folder, &nodes);
    assert_int_equal(nodes.count, 0);
}

/* What a line says before it turns into nonsense counts. */
static void nonsense_is_no_node(void **state) {
    (void)state;
    int a, b;
    char half[32];
    two_cores(&a, &b);
    snprintf(half, sizeof half, "%d,,%d", a, b);
    const char *const lists[] = {half, "", "\n", "-3-1023", "5-2", "x", "0-", "99999999999999999999", "2000-3000"};
    for (int i = 0; i < 9; i++) {
        fs_nodes nodes;
        make_folder("0-1", lists[i], lists[i]);
        fs_nodes_find(folder, &nodes);
        assert_int_equal(nodes.count, i ? 0 : 2);
        for (int n = 0; n < nodes.count; n++) assert_int_equal(nodes.cores[n], 1);
        write_file("online", lists[i]);
        fs_nodes_find(folder, &nodes);
        assert_int_equal(nodes.count, i ? 0 : a < 2); /* there are nodes 0 and 1 */
        delete_folder();
    }
}

static fs_nodes pretend(int32_t count, const int32_t *cores) {
    fs_nodes nodes;
    memset(&nodes, 0, sizeof nodes);
    nodes.count = count;
    for (int32_t n = 0; n < count; n++) nodes.id[n] = n, nodes.cores[n] = cores[n];
    return nodes;
}

static void tasks_are_shared_as_cores_are(void **state) {
    (void)state;
    const int32_t cores[] = {3, 1, 4};
    const fs_nodes nodes = pretend(3, cores);
    int32_t tasks[3] = {0, 0, 0};
    for (int32_t i = 0, before = 0; i < 16; i++) {
        const int32_t home = fs_nodes_home(&nodes, i, 16);
        assert_true(home >= before); /* neighbours share a node */
        before = home;
        tasks[home]++;
    }
    for (int n = 0; n < 3; n++) assert_int_equal(tasks[n], 2 * cores[n]);
}

/* Where a block lies: pattern 0 in stretches, 1 by turns, 2 all on one node, 3 nowhere known, 4 anyhow. */
static uint8_t pretended_node(const void *user, int64_t block) {
    const int64_t pattern = *(const int64_t *)user;
    if (pattern == 0) return block < 60 ? 0 : 1;
    if (pattern == 1) return (uint8_t)(block % 2);
    if (pattern == 2) return 1;
    return pattern == 3 ? FS_NODE_UNKNOWN
                        : (uint8_t)(block * block * 7 % 11 % 3 == 2 ? FS_NODE_UNKNOWN : block * 5 % 7 % 2);
}

static void every_block_is_dealt_once_and_at_home_where_it_can_be(void **state) {
    (void)state;
    const int32_t cores[] = {2, 2};
    const fs_nodes nodes = pretend(2, cores);
    enum { TURNS = 30, TASKS = 4, BLOCKS = TURNS * TASKS };
    for (int64_t pattern = 0; pattern < 5; pattern++) {
        int32_t order[BLOCKS], seen[BLOCKS] = {0}, lying[2] = {0, 0}, at_home[2] = {0, 0};
        fs_nodes_schedule(&nodes, TURNS, TASKS, pretended_node, &pattern, order);
        for (int32_t i = TASKS; i < BLOCKS; i++) assert_true(order[i] > order[i - TASKS]); /* lists count on it */
        for (int i = 0; i < BLOCKS; i++) {
            assert_in_range(order[i], 0, BLOCKS - 1);
            seen[order[i]]++;
            const uint8_t node = pretended_node(&pattern, order[i]);
            if (node > 1) continue;
            lying[node]++;
            at_home[node] += fs_nodes_home(&nodes, i % TASKS, TASKS) == node;
        }
        for (int i = 0; i < BLOCKS; i++) assert_int_equal(seen[i], 1);
        for (int n = 0; n < 2; n++) assert_int_equal(at_home[n], lying[n] < BLOCKS / 2 ? lying[n] : BLOCKS / 2);
        /* Low ids first, as without nodes: thresholds depend on it. */
        if (pattern == 1) assert_true(order[0] < 4 && order[3] < 8);
    }
}

enum { V = 20011, D = 40, B = 3 };
static uint16_t weights[V * D];
static float hidden[B * D];

static void draw(fs_context *context, int32_t *tokens, float *log_z) {
    fs_head head = fs_head_default();
    head.kind = FS_HEAD_WEIGHTS, head.data = weights, head.rows = V, head.dim = D, head.dtype = FS_BF16;
    fs_batch batch = fs_batch_default();
    batch.rows = B, batch.hidden = hidden, batch.hidden_dtype = FS_F32, batch.position_all = 7,
    rules_of(&batch)->top_p.value = 0.9f;
    fs_result result = fs_result_default();
    result.tokens = tokens, result.log_z = log_z, result.logits_mode = FS_LOGITS_PROCESSED;
    if (fs_sample(context, &head, &batch, &result) != FS_OK) fail_msg("%s", fs_error_text(context));
}

static void tokens_do_not_depend_on_nodes(void **state) {
    (void)state;
    rng r = random_from(31);
    int32_t expected[B], got[B];
    float expected_z[B], got_z[B];
    for (int i = 0; i < V * D; i++) weights[i] = bf16_of((float)random_normal(&r) * 0.3f);
    for (int i = 0; i < B * D; i++) hidden[i] = (float)random_normal(&r);
    fs_context *plain = open_context(FS_BACKEND_CPU, 1, 128);
    draw(plain, expected, expected_z);
    fs_context_destroy(plain);
    make_two_nodes();
    setenv("FLASHSAMPLING_NODES", folder, 1);
    for (int32_t threads = 1; threads <= 5; threads++) {
        fs_context *context = open_context(FS_BACKEND_CPU, threads, 128);
        fs_cpu *cpu = context->state;
        assert_int_equal(cpu->nodes.count, 2);
        assert_non_null(strstr(context->text, "on 2 memory nodes"));
        draw(context, got, got_z);
        assert_memory_equal(expected, got, sizeof got);
        assert_memory_equal(expected_z, got_z, sizeof got_z);
        assert_ptr_equal(cpu->residence.data, weights);
        for (int pattern = 0; pattern < 4; pattern++) {
            for (int i = 0; i < (V + 127) / 128; i++)
                cpu->residence.node[i] = (uint8_t)(pattern == 3   ? FS_NODE_UNKNOWN
                                                   : pattern == 2 ? i / 50
                                                                  : (i >> pattern) % 2);
            memset(got, 0x77, sizeof got);
            draw(context, got, got_z);
            assert_memory_equal(expected, got, sizeof got);
            assert_memory_equal(expected_z, got_z, sizeof got_z);
        }
        fs_context_destroy(context);
    }
    unsetenv("FLASHSAMPLING_NODES");
    delete_folder();
}

static int32_t nodes_of_a_context(void) {
    fs_context *context = open_context(FS_BACKEND_CPU, 2, 0);
    const int32_t count = ((fs_cpu *)context->state)->nodes.count;
    fs_context_destroy(context);
    return count;
}

static void nodes_are_off_unless_asked_for(void **state) {
    (void)state;
    fs_nodes nodes;
    fs_nodes_find("/sys/devices/system/node", &nodes);
    assert_int_equal(nodes_of_a_context(), 0);
    setenv("FLASHSAMPLING_NODES", "off", 1);
    assert_int_equal(nodes_of_a_context(), 0);
    setenv("FLASHSAMPLING_NODES", "on", 1);
    assert_int_equal(nodes_of_a_context(), nodes.count);
    unsetenv("FLASHSAMPLING_NODES");
}

static void a_forced_folder_without_nodes_is_an_error(void **state) {
    (void)state;
    fs_options options = fs_options_default();
    options.backend = FS_BACKEND_CPU;
    fs_context *context = NULL;
    setenv("FLASHSAMPLING_NODES", "/no/such/folder", 1);
    assert_int_equal(fs_context_create(&options, &context), FS_ERR_ENVIRONMENT);
    assert_null(context);
    assert_non_null(strstr(fs_error_text(NULL), "/no/such/folder"));
    unsetenv("FLASHSAMPLING_NODES");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_those_with_cores_we_may_use),
        cmocka_unit_test(nonsense_is_no_node),
        cmocka_unit_test(tasks_are_shared_as_cores_are),
        cmocka_unit_test(every_block_is_dealt_once_and_at_home_where_it_can_be),
        cmocka_unit_test(tokens_do_not_depend_on_nodes),
        cmocka_unit_test(nodes_are_off_unless_asked_for),
        cmocka_unit_test(a_forced_folder_without_nodes_is_an_error),
    };
    return cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
}
