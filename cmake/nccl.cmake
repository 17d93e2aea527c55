# The NCCL transport, libflashsampling_nccl, where nccl.h and its library are found. NCCL is the caller's: it is linked, not carried.
set(FS_NCCL AUTO CACHE STRING "The NCCL transport: AUTO (if it is found), ON (an error if not), OFF")
set_property(CACHE FS_NCCL PROPERTY STRINGS AUTO ON OFF)

set(fs_nccl_library "")
if(NOT FS_NCCL STREQUAL "OFF")
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR})
    mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
    if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
        add_library(flashsampling_nccl SHARED src/dist/nccl/nccl_ranks.c)
        target_include_directories(flashsampling_nccl SYSTEM PRIVATE ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
        target_include_directories(flashsampling_nccl PUBLIC
            $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
        # The runtime's shared library: the stream belongs to the caller's, and a query must not start another one.
        target_link_libraries(flashsampling_nccl PRIVATE ${NCCL_LIBRARY} CUDA::cudart $<BUILD_INTERFACE:fs_flags>
                              $<BUILD_INTERFACE:fs_strict_warnings>)
        set_target_properties(flashsampling_nccl PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${abi_version})
        add_library(flashsampling::flashsampling_nccl ALIAS flashsampling_nccl)
        set(fs_nccl_library nccl)
    elseif(FS_NCCL STREQUAL "ON")
        message(FATAL_ERROR "FS_NCCL=ON, but nccl.h or libnccl was not found; give NCCL_INCLUDE_DIR and NCCL_LIBRARY")
    else()
        message(STATUS "flashsampling: NCCL was not found, no transport for it")
    endif()
endif()
