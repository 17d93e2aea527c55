# Cross build for aarch64 Linux with Debian's gcc-aarch64-linux-gnu; tests run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
# Optional, and never the machine's own: without it there is no C++.
find_program(cross_cxx aarch64-linux-gnu-g++)
if(cross_cxx)
    set(CMAKE_CXX_COMPILER ${cross_cxx})
else()
    set(CMAKE_CXX_COMPILER NOTFOUND)
endif()
# Vectors of SVE have 128 bits: with longer ones qemu 7.2 takes up to five times as long, for whatever it does.
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-cpu;max,sve128=on;-L;/usr/aarch64-linux-gnu")
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
