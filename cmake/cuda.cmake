# The CUDA backend, with FS_CUDA=ON. The runtime is linked statically and looks for the driver when it is first asked, so the same
# library runs where there is neither GPU nor driver. Kernels are compiled for the architectures that have a tile file.
#
# nvcc contracts a*b+c by default, which the dot products want; the code of src/core shared with the CPU must not be contracted, and
# is not: its scores are in double from sums that have no product in front of them, and its masses are not used here yet.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

file(GLOB cuda_kernels CONFIGURE_DEPENDS src/cuda/*.cu)
add_library(flashsampling_kernels OBJECT ${cuda_kernels})
set_target_properties(flashsampling_kernels PROPERTIES CUDA_ARCHITECTURES 90a-real CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                                                       CUDA_VISIBILITY_PRESET hidden)
target_include_directories(flashsampling_kernels PRIVATE include src src/cuda)

add_library(flashsampling_cuda OBJECT src/cuda/cuda_backend.c)
target_include_directories(flashsampling_cuda PRIVATE include src src/cuda)
target_link_libraries(flashsampling_cuda PRIVATE fs_flags fs_strict_warnings CUDA::cudart_static)

target_compile_definitions(flashsampling_objects PRIVATE FS_WITH_CUDA)
foreach(library flashsampling flashsampling_static)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:flashsampling_kernels> $<TARGET_OBJECTS:flashsampling_cuda>)
endforeach()
target_link_libraries(flashsampling PRIVATE $<BUILD_INTERFACE:CUDA::cudart_static>)
target_link_libraries(flashsampling_static PUBLIC $<BUILD_INTERFACE:CUDA::cudart_static> stdc++)
# The runtime's symbols stay inside.
target_link_options(flashsampling PRIVATE -Wl,--exclude-libs,ALL)
