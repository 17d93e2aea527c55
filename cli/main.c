/* main.c - flashsample: which command, and the help that names them all. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static int generate(int argc, char **argv) {
    (void)argc, (void)argv;
    die(END_RUNTIME, "this command needs Python: pip install flashsampling, then python -m flashsampling generate");
}

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"demo", "draw from an LM head of Qwen3-0.6B's shape and see what it costs", cmd_demo},
    {"sample", "draw tokens from .npy files or synthetic weights, every rule and result", cmd_sample},
    {"verify", "test on this machine that every rule draws from the right distribution", cmd_verify},
    {"bench", "time the fused call against the machine's read bandwidth", cmd_bench},
    {"info", "versions, backend and instruction sets", cmd_info},
    {"generate", "continue a text with a model (Python package, with torch and transformers)", generate},
};
#define COMMANDS ((int)(sizeof commands / sizeof commands[0]))

static int help(void) {
    printf("usage: flashsample COMMAND [options]\n\n"
           "Draws the next token of a language model exactly, fused into the LM-head matmul: one pass over W,\n"
           "no stored logits.\n\n");
    for (int i = 0; i < COMMANDS; i++) printf("  %-8s %s\n", commands[i].name, commands[i].about);
    printf("\n  flashsample COMMAND --help   the options of a command\n"
           "  flashsample --version        version and noise id\n\n"
           "Environment, each to force a choice; what does not exist or does not run here is an error:\n"
           "  FLASHSAMPLING_BACKEND         cpu, cuda, reference\n"
           "  FLASHSAMPLING_ISA             a kernel of the CPU; info --isa-list names those that run here\n"
           "  FLASHSAMPLING_NODES           on: threads keep to memory nodes; off (default); or a folder of nodes\n"
           "  FLASHSAMPLING_CUDA_TILE       sm90 or portable, with :N its tile for N rows\n"
           "  FLASHSAMPLING_CHECK_POINTERS  1: CUDA asks the driver about every pointer; 0 (default)\n"
           "  FLASHSAMPLING_MPI             the transport under mpirun: openmpi, mpich, mpi, a file, none\n\n"
           "Exit codes: 0 done; 1 verification rejected; 2 wrong usage or a value out of range; 3 a file is\n"
           "not there or not what is needed, this build or backend does not do it, memory, device or another\n"
           "rank failed, or lists were too short to prove a row's cut.\n");
    return END_OK;
}

static int version(void) {
    printf("flashsample %s (noise id %#x%s)\n", fs_version_text(), fs_noise_id() & 0x7fffffffu,
           fs_noise_id() >> 31 ? ", draft" : "");
    return END_OK;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "flashsample: a command is missing; flashsample --help lists them\n");
        return END_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) finish(help());
    if (strcmp(word, "--version") == 0) finish(version());
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(word, commands[i].name) != 0) continue;
        set_command(word);
        finish(commands[i].run(argc - 1, argv + 1));
    }
    die(END_USAGE, "unknown command \"%s\"; flashsample --help lists them", word);
}
