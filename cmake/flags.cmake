# Compiler flags, in three interface targets: what every file of ours gets, and two sets of warnings.
#
# The flags are the arithmetic. Which token a seed draws must not depend on whether a compiler contracted a*b+c, so
# contraction is off; cmake/isa.cmake turns it on for tile kernels but AMX's. Nothing here may relax IEEE rules further:
# tests/checks/no_fast_math.py looks. The two -fno-... below change no value, they only drop errno and the exception
# flags, which nothing of ours reads and which would keep loops over sqrt, floor and comparisons from being vectorised.
add_library(fs_flags INTERFACE)
target_compile_options(fs_flags INTERFACE -ffp-contract=off -fno-math-errno -fno-trapping-math)

set(warnings -Wall -Wextra -Wshadow -Wundef -Wvla -Wpointer-arith -Wwrite-strings -Wcast-qual -Wformat=2
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes> $<$<COMPILE_LANGUAGE:C>:-Wold-style-definition>)
add_library(fs_warnings INTERFACE)
target_compile_options(fs_warnings INTERFACE ${warnings} $<$<BOOL:${FS_WERROR}>:-Werror>)

# What ships: every narrowing is written down. Sign changes are not (sizes and indices mix too freely for that to help).
add_library(fs_strict_warnings INTERFACE)
target_compile_options(fs_strict_warnings INTERFACE ${warnings} -Wconversion -Wno-sign-conversion
    -Wmissing-prototypes $<$<BOOL:${FS_WERROR}>:-Werror>)

string(REPLACE "-O2" "-O3" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")

if(FS_SANITIZE)
    if(NOT FS_SANITIZE MATCHES "^(address,undefined|thread)$")
        message(FATAL_ERROR "FS_SANITIZE=${FS_SANITIZE}: expected address,undefined or thread")
    endif()
    # -O1 keeps stacks readable and the legs short. An undefined operation ends the test instead of scrolling by. Two
    # passes of gcc take half of the minute that the kernel of split weights takes, and change no answer.
    set(sanitizer -fsanitize=${FS_SANITIZE} -fno-omit-frame-pointer -g -O1
        $<$<C_COMPILER_ID:GNU>:-fno-var-tracking> $<$<C_COMPILER_ID:GNU>:-fira-region=one>)
    if(FS_SANITIZE MATCHES undefined)
        list(APPEND sanitizer -fno-sanitize-recover=undefined)
    endif()
    target_compile_options(fs_flags INTERFACE ${sanitizer})
    target_link_options(fs_flags INTERFACE ${sanitizer})
endif()
