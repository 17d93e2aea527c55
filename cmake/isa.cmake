# A file of src/cpu/kernels whose name ends in an instruction set is compiled for it, and only on the architecture that
# has it: cpu_tile_avx2.c, cpu_scan_avx2.c. Which of them runs is decided at run time in cpu_dispatch.c there; no other
# file may use more than the architecture's baseline. One row per set: name, architecture, flags.
#
# The tile kernels, cpu_tile_*.c, are the one place where a*b+c may become a fused multiply-add: there it is the point, a
# dot product's rounding differs between instruction sets anyway, and the K order is written out. Everything behind the
# logits is compiled without (cmake/flags.cmake), so that it is the same on every machine.
set(isa_rules
    "scalar   any      "
    "avx2     x86_64   -mavx2 -mfma -mf16c"
    "avx512   x86_64   -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c"
    "avx512bf16 x86_64 -mavx512bf16 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c"
    "amx      x86_64   -mamx-tile -mamx-bf16 -mavx512fp16 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c"
    "avx512vnni x86_64 -mavx512vnni -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c"
    "neon     aarch64  "
    "neondot  aarch64  -march=armv8.2-a+dotprod+i8mm"
    "neonf16  aarch64  -march=armv8.2-a+fp16fml"
    "neonbf16 aarch64  -march=armv8.2-a+bf16"
    "neonmmla aarch64  -march=armv8.2-a+bf16"
    "sve      aarch64  -march=armv8.2-a+sve"
    "svebf16  aarch64  -march=armv8.2-a+sve+bf16"
)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(fs_architecture x86_64)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(fs_architecture aarch64)
else()
    set(fs_architecture other)
    message(STATUS "flashsampling: ${CMAKE_SYSTEM_PROCESSOR} is not a tested architecture; only the scalar kernel is built")
endif()

# Drops the files of other architectures from the list named `sources` and gives the rest their flags.
function(fs_isa_sources sources)
    set(kept "")
    foreach(file IN LISTS ${sources})
        cmake_path(GET file STEM stem)
        set(known FALSE)
        set(keep TRUE)
        foreach(rule IN LISTS isa_rules)
            string(REGEX MATCH "^([a-z0-9]+) +([a-z0-9_]+) *(.*)$" _ "${rule}")
            set(architecture ${CMAKE_MATCH_2})
            set(flags "${CMAKE_MATCH_3}")
            if(file MATCHES "/src/cpu/kernels/" AND stem MATCHES "_${CMAKE_MATCH_1}$")
                set(known TRUE)
                if(architecture STREQUAL fs_architecture)
                    separate_arguments(flags UNIX_COMMAND "${flags}")
                    set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS ${flags})
                elseif(NOT architecture STREQUAL "any")
                    set(keep FALSE)
                endif()
            endif()
        endforeach()
        if(stem MATCHES "^cpu_tile_" AND NOT known)
            message(FATAL_ERROR "${file}: its instruction set has no row in cmake/isa.cmake")
        endif()
        # AMX multiplies in units of its own, and its filters add to masses, whose bits are promised.
        if(stem MATCHES "^cpu_tile_" AND NOT stem MATCHES "_amx$")
            set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=fast)
        endif()
        if(keep)
            list(APPEND kept ${file})
        endif()
    endforeach()
    set(${sources} ${kept} PARENT_SCOPE)
endfunction()
