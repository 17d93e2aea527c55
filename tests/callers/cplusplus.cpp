// cplusplus.cpp - examples/minimal.c in C++11: the context in a smart pointer, arrays in vectors, errors as exceptions.
#include <flashsampling.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct destroy {
    void operator()(fs_context *context) const { fs_context_destroy(context); }
};
using context_ptr = std::unique_ptr<fs_context, destroy>;

void check(fs_status status, const context_ptr &context) {
    if (status != FS_OK) throw std::runtime_error(fs_error_text(context.get()));
}

context_ptr make_context(const fs_options &options) {
    fs_context *raw = nullptr;
    const fs_status status = fs_context_create(&options, &raw);
    context_ptr context(raw);
    check(status, context);
    return context;
}

std::vector<float> random_floats(size_t n, uint32_t seed) {
    std::vector<float> x(n);
    for (float &value : x) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
    }
    return x;
}

void draw() {
    const int64_t B = 4, D = 64, V = 1000;
    const std::vector<float> weights = random_floats(V * D, 1), hidden = random_floats(B * D, 2);
    std::vector<int64_t> tokens(B);
    std::vector<uint32_t> status(B);

    fs_options options = fs_options_default();
    options.threads = 2;
    const context_ptr context = make_context(options);

    fs_head head = fs_head_default();
    head.data = weights.data();
    head.rows = V;
    head.dim = D;

    fs_batch batch = fs_batch_default();
    batch.hidden = hidden.data();
    batch.rows = B;
    batch.mode = FS_MODE_SAMPLE;
    batch.flags = FS_KEEP_TIES | FS_JOINT_TOP_P;
    fs_rules rules = fs_rules_default();
    batch.rules = &rules;
    rules.top_p.value = 0.95f;
    batch.seed_all = 42;

    fs_result result = fs_result_default();
    result.tokens = tokens.data();
    result.tokens_dtype = FS_I64;
    result.status = status.data();
    check(fs_sample(context.get(), &head, &batch, &result), context);

    for (size_t b = 0; b < tokens.size(); b++)
        if ((status[b] & FS_ROW_NO_TOKEN) != 0 || tokens[b] < 0 || tokens[b] >= V)
            throw std::runtime_error("a row has no token");
    std::printf("%d rows drew the tokens", static_cast<int>(tokens.size()));
    for (const int64_t token : tokens) std::printf(" %d", static_cast<int>(token));
    std::printf("\n");

    head.dim = -1; // errors arrive with value and limit
    try {
        check(fs_sample(context.get(), &head, &batch, &result), context);
    } catch (const std::runtime_error &error) {
        if (std::string(error.what()).find("head.dim is -1") == std::string::npos) throw;
        std::printf("a wrong argument is an exception: %s\n", error.what());
        return;
    }
    throw std::runtime_error("a head of dimension -1 was taken");
}

} // namespace

int main() {
    try {
        draw();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "cplusplus: %s\n", error.what());
        return 1;
    }
    return 0;
}
