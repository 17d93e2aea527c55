# The libraries of the Python package, which scikit-build-core (pyproject.toml) puts into flashsampling/lib: the CPU's,
# calls in C, and in a library of its own, with everything that is in the first one, the CUDA backend. They are found by their files
# (python/flashsampling/_c.py), so their names carry no version.
#
# FS_CUDA is AUTO here unless it is said: ON where an nvcc that is new enough is on the PATH.
set(oldest_nvcc 13.0)
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
        message(STATUS "flashsampling: nvcc ${nvcc_version} is here, so the CUDA library is built too, which takes "
                "minutes (--config-settings=cmake.define.FS_CUDA=OFF leaves it out)")
    else()
        set(FS_CUDA OFF)
        message(STATUS "flashsampling: no nvcc ${oldest_nvcc} or later is on the PATH, so the CUDA library is left out")
    endif()
endif()

set_property(TARGET flashsampling PROPERTY VERSION)
set_property(TARGET flashsampling PROPERTY SOVERSION)
set_property(TARGET flashsampling_static PROPERTY EXCLUDE_FROM_ALL ON)
install(TARGETS flashsampling flashsampling_python LIBRARY DESTINATION lib)

if(FS_CUDA)
    # Code for 8.0 as PTX too: devices that are newer than these translate it when they first need it.
    set(FS_CUDA_ARCHITECTURES "80;90-real" CACHE STRING "What the portable CUDA kernels are compiled for")
    include(cmake/cuda.cmake)
    # What is compiled already but for the table of backends, which is another one.
    add_library(flashsampling_python_cuda SHARED src/backend.c
                $<FILTER:$<TARGET_OBJECTS:flashsampling_objects>,EXCLUDE,/src/backend\\.c>)
    set_target_properties(flashsampling_python_cuda PROPERTIES OUTPUT_NAME flashsampling_cuda LINKER_LANGUAGE C)
    target_compile_definitions(flashsampling_python_cuda PRIVATE FS_WITH_CUDA)
    target_include_directories(flashsampling_python_cuda PRIVATE include src)
    target_link_libraries(flashsampling_python_cuda PRIVATE fs_flags fs_strict_warnings Threads::Threads m)
    target_link_options(flashsampling_python_cuda PRIVATE -Wl,--no-undefined)
    fs_add_cuda(flashsampling_python_cuda)
    install(TARGETS flashsampling_python_cuda LIBRARY DESTINATION lib)
endif()
