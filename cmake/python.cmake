# The Python package, which scikit-build-core (pyproject.toml) puts together under flashsampling/: lib/ has the CPU's
# library, the one for calls in C and, with everything that is in the first one, the CUDA backend's; bin/ has the
# command, linked to the last of them; include/ has the public headers. Files are found by their names
# (python/flashsampling/_package.py), so the libraries' names carry no version.
#
# FS_CUDA is AUTO here unless it is given: ON where an nvcc that is new enough is on the PATH.
set(oldest_nvcc 13.0)
set(core_minutes 14) # for the CUDA kernels, divided by the cores, and a minute for the longest one

# pip shows no output of a build unless it fails or -v was given. A terminal shows the line at once all the same.
function(announce_cuda version)
    cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
    math(EXPR minutes "(${core_minutes} + ${cores} - 1) / ${cores} + 1")
    set(line "flashsampling: nvcc ${version} is on the PATH: compiling the CUDA kernels takes about ${minutes} minutes "
        "on ${cores} cores. To skip them: pip install . --config-settings=cmake.define.FS_CUDA=OFF")
    list(JOIN line "" line)
    message(STATUS "${line}")
    execute_process(COMMAND sh -c "printf '\\r\\n%s\\r\\n' \"$1\" >/dev/tty" sh "${line}" OUTPUT_QUIET ERROR_QUIET)
endfunction()

if(FS_CUDA STREQUAL "AUTO")
    find_program(FS_NVCC nvcc PATHS ENV PATH NO_DEFAULT_PATH)
    mark_as_advanced(FS_NVCC)
    set(nvcc_version 0)
    if(FS_NVCC)
        execute_process(COMMAND ${FS_NVCC} --version OUTPUT_VARIABLE shown ERROR_QUIET)
        string(REGEX MATCH "release ([0-9.]+)" _ "${shown}")
        set(nvcc_version "${CMAKE_MATCH_1}")
    endif()
    if(nvcc_version VERSION_GREATER_EQUAL oldest_nvcc)
        set(FS_CUDA ON)
        announce_cuda(${nvcc_version})
    else()
        set(FS_CUDA OFF)
        message(STATUS "flashsampling: no nvcc ${oldest_nvcc} or later is on the PATH, so the CUDA library is left out")
    endif()
endif()

# Links in place of the compiler, against an older C library than this machine's: scripts/wheel.sh. Compiled code is the
# compiler's either way, and so are the functions it calls from its own library.
set(FS_LINKER "" CACHE STRING "What links the package's libraries and its command; empty: the C compiler")
if(FS_LINKER)
    set(libgcc "-Wl,-S -Wl,--as-needed -Wl,--allow-shlib-undefined") # libgcc_s.so needs this machine's C library
    foreach(file libgcc.a libgcc_s.so.1)
        execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=${file} OUTPUT_VARIABLE path
                        OUTPUT_STRIP_TRAILING_WHITESPACE)
        string(APPEND libgcc " ${path}")
    endforeach()
    foreach(rule CMAKE_C_CREATE_SHARED_LIBRARY CMAKE_C_LINK_EXECUTABLE)
        string(REPLACE "<CMAKE_C_COMPILER>" "${FS_LINKER}" ${rule} "${${rule}} ${libgcc}")
    endforeach()
    set(CMAKE_LINK_DEPENDS_USE_LINKER OFF) # it has no --dependency-file
endif()

set_property(TARGET flashsampling PROPERTY VERSION)
set_property(TARGET flashsampling PROPERTY SOVERSION)
set_property(TARGET flashsampling_static PROPERTY EXCLUDE_FROM_ALL ON)
file(GLOB headers CONFIGURE_DEPENDS include/*.h)
install(FILES ${headers} DESTINATION include)
install(TARGETS flashsampling flashsampling_python LIBRARY DESTINATION lib)
set(command_library flashsampling Threads::Threads m)

if(FS_CUDA)
    # Code for 8.0 as PTX too: devices that are newer than these translate it when they first need it.
    set(FS_CUDA_ARCHITECTURES "80;90-real" CACHE STRING "What the portable CUDA kernels are compiled for")
    include(cmake/cuda.cmake)
    # What is compiled already but for the table of backends, which is another one.
    add_library(flashsampling_python_cuda SHARED src/backend.c
                $<FILTER:$<TARGET_OBJECTS:flashsampling_objects>,EXCLUDE,/src/backend\\.c>)
    set_target_properties(flashsampling_python_cuda PROPERTIES OUTPUT_NAME flashsampling_cuda LINKER_LANGUAGE C)
    target_compile_definitions(flashsampling_python_cuda PRIVATE FS_WITH_CUDA)
    target_include_directories(flashsampling_python_cuda PUBLIC include PRIVATE src)
    target_link_libraries(flashsampling_python_cuda PRIVATE fs_flags fs_strict_warnings Threads::Threads m)
    target_link_options(flashsampling_python_cuda PRIVATE -Wl,--no-undefined)
    fs_add_cuda(flashsampling_python_cuda)
    install(TARGETS flashsampling_python_cuda LIBRARY DESTINATION lib)
    set(command_library flashsampling_python_cuda Threads::Threads m)
endif()

# The command finds the package's library, also where LD_LIBRARY_PATH names a folder with another one of this name: that
# is RPATH; RUNPATH comes after LD_LIBRARY_PATH.
function(fs_install_command)
    set(rpath "$ORIGIN/../lib")
    set_target_properties(flashsample PROPERTIES INSTALL_RPATH "${rpath}" BUILD_WITH_INSTALL_RPATH ON)
    target_link_options(flashsample PRIVATE -Wl,--disable-new-dtags)
    if(FS_LINKER)
        # Zig's list of symbols does not say that environ and __environ are one variable. A copy of it in the program
        # (-fPIE, R_X86_64_COPY) would stay NULL. Zig also ignores --disable-new-dtags.
        target_compile_options(flashsample PRIVATE -fPIC)
        target_link_options(flashsample PRIVATE -pie -Wl,-z,nocopyreloc)
        add_custom_command(TARGET flashsample POST_BUILD VERBATIM
                           COMMAND patchelf --force-rpath --set-rpath "${rpath}" $<TARGET_FILE:flashsample>)
    endif()
    install(TARGETS flashsample RUNTIME DESTINATION bin)
endfunction()
