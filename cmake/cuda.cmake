# The CUDA backend, with FS_CUDA=ON. The runtime is linked statically and looks for the driver when it is first asked, so
# the same library runs where there is neither GPU nor driver.
#
# Files named after an architecture that has instructions of its own are compiled for it alone; everything else for each
# of FS_CUDA_ARCHITECTURES: the default is what an A100 and an H100 or H200 need, so that a build is quick, and code for
# 8.0 also runs on 8.6 and 8.9. `make cuda-all` names all of them.
#
# nvcc contracts a*b+c by default; the code of src/core, shared with the CPU, must not be. Dot products are the tensor
# cores', and kernels that want a fused multiply-add say fmaf.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

set(FS_CUDA_ARCHITECTURES "80-real;90-real" CACHE STRING
    "What the portable CUDA kernels are compiled for, as CUDA_ARCHITECTURES")

file(GLOB cuda_kernels CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*/*.cu)
set(cuda_kernels_90a ${cuda_kernels})
list(FILTER cuda_kernels_90a INCLUDE REGEX "/sm90[a-z_]*\\.cu$")
list(REMOVE_ITEM cuda_kernels ${cuda_kernels_90a})
add_library(flashsampling_kernels OBJECT ${cuda_kernels})
add_library(flashsampling_kernels_90a OBJECT ${cuda_kernels_90a})
set_target_properties(flashsampling_kernels PROPERTIES CUDA_ARCHITECTURES "${FS_CUDA_ARCHITECTURES}")
set_target_properties(flashsampling_kernels_90a PROPERTIES CUDA_ARCHITECTURES 90a-real)
foreach(kernels flashsampling_kernels flashsampling_kernels_90a)
    set_target_properties(${kernels} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                          CUDA_VISIBILITY_PRESET hidden)
    target_include_directories(${kernels} PRIVATE include src)
    target_compile_options(${kernels} PRIVATE --fmad=false --threads=2) # two architectures at a time
endforeach()

add_library(flashsampling_cuda OBJECT src/cuda/cuda_backend.c src/cuda/cuda_families.c src/cuda/cuda_memory.c
            src/cuda/cuda_ranks.c src/cuda/cuda_rows.c src/cuda/cuda_samples.c src/cuda/cuda_screen.c)
target_include_directories(flashsampling_cuda PRIVATE include src)
target_link_libraries(flashsampling_cuda PRIVATE fs_flags fs_strict_warnings CUDA::cudart_static)

# Puts the backend into a library, whose table of backends (src/backend.c) is compiled with FS_WITH_CUDA. A shared one
# carries the runtime, whose symbols stay inside: cmake/exports.map.
function(fs_add_cuda library)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:flashsampling_kernels>
                   $<TARGET_OBJECTS:flashsampling_kernels_90a> $<TARGET_OBJECTS:flashsampling_cuda>)
    get_target_property(type ${library} TYPE)
    if(type STREQUAL "SHARED_LIBRARY")
        target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
        target_link_options(${library} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map)
    else()
        target_link_libraries(${library} PUBLIC $<BUILD_INTERFACE:CUDA::cudart_static> stdc++)
    endif()
endfunction()
