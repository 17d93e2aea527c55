# What ctest runs, under which label, how and for how long. CMakePresets.json says which labels a leg has.
#
#   c fuzz caller   programs of tests/CMakeLists.txt; core: those of them that asan-core runs
#   py check        pytest with numpy, scripts that look at the tree; long: those that the default leaves out
#   ranks isa valgrind          the same programs under MPI, on a forced row of kernels, under memcheck
#   wheel torch vllm sglang cuda    what needs more than Debian's packages
#
# A program skips with exit code 77, the last line it prints being the reason; a case of cmocka by printing `skip: why`.
# FLASHSAMPLING_TEST_SCALE, set by the presets, says how much of a long test to do.

# Their laws of the draws are the same wherever the bits are, which test_agree and test_invariance compare.
set(release_only test_power test_screened_law test_statistics)
# The first two need AMX, which no emulator has; the third starts threads after a fork, which qemu 7.2 cannot; the fourth
# runs programs, which an emulator does not.
set(not_emulated test_amx test_filter test_fork test_cli_device)
# Long even at the scale of a sanitizer or an emulator: a third of it.
set(long_when_slow test_equal_rows test_screened test_nucleus test_parts fuzz_screens)
# Statistics, last in their leg.
set(statistics test_power test_screened test_screened_law test_statistics)
# Files of Python tests that compile for a minute: the library with a new rule, the cases of core under sanitizers.
set(long_python py/test_new_rule py/test_core_vectors)
# What the default run looks at under the sanitizers: arguments, arithmetic, every kernel, memory, threads.
set(core test_agree test_arguments test_backend test_core test_drafts test_errors test_format test_invariance
    test_kernels test_last_ids test_memory test_needs test_npy test_parts test_scans test_threads test_vectors
    test_work_size test_zeros fuzz_npy fuzz_parts fuzz_structs)
# Memcheck is 50 times slower than the machine; these reach all of the library, and only undefined values are its
# business.
set(under_valgrind test_agree test_errors test_threads test_npy test_vectors)
# A forced row of kernels changes logits and scans over them; test_kernels and test_scans look at every row themselves.
set(forced test_agree test_invariance test_memory test_nucleus test_ranks test_filter test_stored test_screened)
# Files of tests/torch that run both with calls in C and through ctypes.
set(both_ways test_hostile test_lifetime test_ops test_tensors)
# Files of tests/py that need the package alone; test-python runs them against the wheel.
set(package_alone "test_binding*.py" test_documents.py test_library.py test_main.py "test_sample*.py")

set(limit_c 400)
set(limit_fuzz 400)
set(limit_caller 120)
# ctest begins with the dearest.
set(cost_c 50)
set(cost_fuzz 45)
set(cost_caller 60)

set(program_env CMOCKA_MESSAGE_OUTPUT=TAP)

# fs_test(NAME LABELS ... COMMAND ... TIMEOUT seconds [COST n] [ENV ...] [PROPERTIES ...])
function(fs_test name)
    cmake_parse_arguments(PARSE_ARGV 1 t "" "TIMEOUT;COST" "LABELS;COMMAND;ENV;PROPERTIES")
    if(NOT t_COST)
        set(t_COST 10)
    endif()
    add_test(NAME "${name}" COMMAND ${t_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties("${name}" PROPERTIES LABELS "${t_LABELS}" TIMEOUT ${t_TIMEOUT} COST ${t_COST}
                         SKIP_RETURN_CODE 77 ENVIRONMENT "${t_ENV}" ${t_PROPERTIES})
endfunction()

function(fs_add_skip name labels why)
    fs_test("${name}" LABELS ${labels} COMMAND sh -c "echo '${why}'; exit 77" TIMEOUT 60)
endfunction()

# Whether this build runs a program of tests/c or tests/fuzz.
function(fs_wants result name)
    set(slow ${CMAKE_CROSSCOMPILING})
    if(FS_SANITIZE)
        set(slow TRUE)
    endif()
    set(${result} TRUE PARENT_SCOPE)
    if((slow AND name IN_LIST release_only) OR (CMAKE_CROSSCOMPILING AND name IN_LIST not_emulated)
       OR (FS_SANITIZE STREQUAL thread AND name MATCHES "^fuzz_")) # one case after the other: nothing races
        set(${result} FALSE PARENT_SCOPE)
    endif()
endfunction()

# The environment of a program: that of this build, and less of a long one where everything is slow.
function(fs_program_env result name)
    set(env ${program_env})
    if(name IN_LIST long_when_slow AND (FS_SANITIZE OR CMAKE_CROSSCOMPILING))
        list(APPEND env FLASHSAMPLING_TEST_SCALE=0.016)
    endif()
    set(${result} ${env} PARENT_SCOPE)
endfunction()

function(fs_add_program kind name)
    set(labels ${kind})
    set(cost ${cost_${kind}})
    if(name IN_LIST core)
        list(APPEND labels core)
        add_dependencies(core_tests ${name})
    endif()
    if(name IN_LIST statistics)
        set(cost 5)
    endif()
    fs_program_env(env ${name})
    fs_test(${name} LABELS ${labels} COMMAND ${run_with} $<TARGET_FILE:${name}> TIMEOUT ${limit_${kind}} COST ${cost}
            ENV ${env})
endfunction()

# ------------------------------------------------------------------------------------- sanitizers and emulators ----

# Whether a program with nothing wrong passes: there are kernels and containers on which a sanitizer cannot start.
function(fs_probe result wrapper env)
    set(probe ${PROJECT_BINARY_DIR}/probe)
    file(WRITE ${probe}.c "int main(void) { return 0; }\n")
    execute_process(COMMAND ${CMAKE_C_COMPILER} -fsanitize=${FS_SANITIZE} ${probe}.c -o ${probe}
                    RESULT_VARIABLE built OUTPUT_QUIET ERROR_QUIET)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env ${env} ${wrapper} ${probe} TIMEOUT 60
                    RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
    set(${result} FALSE PARENT_SCOPE)
    if(built EQUAL 0 AND code EQUAL 0)
        set(${result} TRUE PARENT_SCOPE)
    endif()
endfunction()

set(run_with "")
set(works TRUE)
add_custom_target(core_tests)
if(CMAKE_CROSSCOMPILING)
    set(run_with ${CMAKE_CROSSCOMPILING_EMULATOR})
elseif(FS_SANITIZE STREQUAL thread)
    set(sanitizer_env TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
    fs_probe(works "" "${sanitizer_env}")
    if(NOT works)
        # gcc 12's runtime does not know the address-space randomisation of newer kernels; setarch -R turns it off.
        set(run_with setarch ${CMAKE_HOST_SYSTEM_PROCESSOR} -R)
        fs_probe(works "${run_with}" "${sanitizer_env}")
    endif()
elseif(FS_SANITIZE)
    # What gcc 12 makes for aarch64 never gives a small frame back, and each call then searches all of them: hundreds of
    # times slower.
    set(stacks 1)
    if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
        set(stacks 0)
    endif()
    set(options strict_string_checks=1:allocator_may_return_null=1:detect_stack_use_after_return=${stacks})
    set(sanitizer_env ASAN_OPTIONS=${options}:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1)
    set(without_leaks ASAN_OPTIONS=${options}:detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1)
    fs_probe(works "" "${sanitizer_env}")
    if(NOT works)
        set(sanitizer_env ${without_leaks})
        fs_probe(works "" "${sanitizer_env}")
        fs_add_skip(leaks "c;core" "the leak sanitizer cannot run here (it needs ptrace)")
    endif()
else()
    list(APPEND program_env MALLOC_PERTURB_=165) # fills fresh and freed memory, so that reading it shows
endif()
list(APPEND program_env ${sanitizer_env})
if(NOT works)
    set(run_with sh -c "echo 'this sanitizer does not run an empty program here'; exit 77")
endif()

# ------------------------------------------------------------------------------------------------------- ranks ----

# Modes of tests/ranks/ranks_test.c with their numbers of ranks: under the first MPI, and under every other.
set(ranks_first same:1 same:2 same:3 same:4 same:7 suite:4 bytes:3 differ:3 fail:3)
set(ranks_again same:1 same:3 same:7 bytes:3 differ:3 fail:3)
if(FS_SANITIZE STREQUAL thread)
    set(ranks_first same:2 fail:2)
    set(ranks_again ${ranks_first})
elseif(FS_SANITIZE)
    set(ranks_first same:2 differ:3 fail:2)
    set(ranks_again ${ranks_first})
endif()
set(start_openmpi --oversubscribe --bind-to none -n)
set(start_mpich -n)
# Containers are root and often have no ptrace, which Open MPI copies between processes with; a bare machine has no ssh,
# without which it would not start. MPICH's UCX replaces malloc, which sanitizers and memcheck do too. scripts/mpi.py
# says the same to Python.
set(mpi_env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
    OMPI_MCA_plm=isolated UCX_MEM_EVENTS=no)

function(fs_add_ranks_of name label cases wrapper env)
    foreach(case IN LISTS cases)
        string(REPLACE ":" ";" case ${case})
        list(GET case 0 mode)
        list(GET case 1 count)
        set(more "")
        if(mode STREQUAL suite)
            set(more FLASHSAMPLING_TEST_SCALE=0.1)
        endif()
        # A sanitizer's dlopen does not look where the program says its libraries are.
        fs_test("${label}_${mode} [${name}, ${count}]" LABELS ${label} TIMEOUT 400 COST 20
                COMMAND ${FS_MPIRUN_${name}} ${start_${name}} ${count} ${wrapper} $<TARGET_FILE:ranks_test> ${mode}
                ENV ${mpi_env} ${env} ${more}
                PROPERTIES ENVIRONMENT_MODIFICATION "LD_LIBRARY_PATH=path_list_prepend:${PROJECT_BINARY_DIR}/lib")
    endforeach()
endfunction()

function(fs_add_ranks label wrapper env)
    set(cases ${ranks_first})
    if(label STREQUAL valgrind)
        set(cases same:2 differ:3 fail:2)
    endif()
    foreach(name openmpi mpich)
        find_program(FS_MPIRUN_${name} mpirun.${name})
        mark_as_advanced(FS_MPIRUN_${name})
        if(NOT FS_MPIRUN_${name})
            fs_add_skip("${label} [${name}]" ${label} "mpirun.${name} is not installed")
        elseif(NOT TARGET flashsampling_${name})
            fs_add_skip("${label} [${name}]" ${label} "the transport was not built: mpicc.${name} is not installed")
        else()
            fs_add_ranks_of(${name} ${label} "${cases}" "${wrapper}" "${env}")
            if(label STREQUAL ranks)
                set(cases ${ranks_again})
            endif()
        endif()
    endforeach()
endfunction()

# ------------------------------------------------------------------- rows of kernels, memcheck, other processors ----

# Rows that run on this machine are asked of flashsample when ctest starts: it is not built yet.
function(fs_add_rows programs prefix)
    set(script ${PROJECT_BINARY_DIR}/rows.cmake)
    set(env ${program_env})
    configure_file(${CMAKE_CURRENT_SOURCE_DIR}/rows.cmake.in ${script} @ONLY)
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

function(fs_add_valgrind)
    find_program(FS_VALGRIND valgrind)
    mark_as_advanced(FS_VALGRIND)
    if(NOT FS_VALGRIND)
        fs_add_skip(valgrind valgrind "valgrind is not installed")
        return()
    endif()
    set(memcheck ${FS_VALGRIND} -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite)
    foreach(name IN LISTS under_valgrind)
        fs_test(valgrind/${name} LABELS valgrind COMMAND ${memcheck} $<TARGET_FILE:${name}> TIMEOUT 400
                ENV ${program_env})
    endforeach()
    # Deep enough a stack to reach the function of MPI that was called.
    set(memcheck ${memcheck} --num-callers=40 --suppressions=${CMAKE_CURRENT_SOURCE_DIR}/ranks/memcheck.supp)
    if(EXISTS /usr/share/openmpi/openmpi-valgrind.supp)
        list(APPEND memcheck --suppressions=/usr/share/openmpi/openmpi-valgrind.supp)
    endif()
    fs_add_ranks(valgrind "${memcheck}" "")
endfunction()

# Emulated CPUs: the rows of the dispatch table that each must show, and rows that use vectors as long as the machine has
# them, or that NEON needs no extension.
function(fs_add_emulated_cpus)
    set(start ${CMAKE_CROSSCOMPILING_EMULATOR})
    list(FIND start -cpu at)
    math(EXPR at "${at} + 1")
    foreach(pair "cortex-a57:neon scalar" "neoverse-n1:neon scalar" "a64fx:sve neon scalar"
                 "max:svebf16 sve neonmmla neonbf16 neonf16 neon scalar")
        string(REGEX MATCH "^(.*):(.*)$" _ "${pair}")
        list(REMOVE_AT start ${at})
        list(INSERT start ${at} ${CMAKE_MATCH_1})
        fs_test("rows [${CMAKE_MATCH_1}]" LABELS isa TIMEOUT 60 ENV "EXPECTED=${CMAKE_MATCH_2}"
                COMMAND sh -c [[rows=$("$@" | xargs); echo "$rows"; test "$rows" = "$EXPECTED"]] sh ${start}
                        $<TARGET_FILE:flashsample> info --isa-list)
    endforeach()
    foreach(pair "max,sve256=on:svebf16" "max,sve256=on:sve" "max,sve512=on:svebf16" "max,sve512=on:sve"
                 "cortex-a57:neon")
        string(REGEX MATCH "^(.*):(.*)$" _ "${pair}")
        list(REMOVE_AT start ${at})
        list(INSERT start ${at} ${CMAKE_MATCH_1})
        foreach(name test_kernels test_scans)
            fs_test("${name} [${CMAKE_MATCH_2} on ${CMAKE_MATCH_1}]" LABELS isa TIMEOUT 400
                    COMMAND ${start} $<TARGET_FILE:${name}> ENV ${program_env} FLASHSAMPLING_ISA=${CMAKE_MATCH_2})
        endforeach()
    endforeach()
endfunction()

# ------------------------------------------------------------------------------------------------------ Python ----

# Each case of a file is counted by its report.
function(fs_pytest name labels python file limit)
    cmake_parse_arguments(PARSE_ARGV 5 t "" "COST" "ENV;PROPERTIES")
    if(NOT t_COST)
        set(t_COST 30)
    endif()
    string(REPLACE "/" "-" report "${name}")
    fs_test("${name}" LABELS ${labels} TIMEOUT ${limit} COST ${t_COST} ENV ${t_ENV} PROPERTIES ${t_PROPERTIES}
            COMMAND ${python} -m pytest -q -p no:cacheprovider "--junitxml=${PROJECT_BINARY_DIR}/junit/${report}.xml" ${file})
endfunction()

# What this Python lacks of the modules that a whole file asks for.
function(fs_missing_module result python file)
    set(wanted ${ARGN})
    file(STRINGS ${file} lines REGEX "^([a-z_]+ = )?pytest.importorskip\\(")
    foreach(line IN LISTS lines)
        string(REGEX MATCH "importorskip\\(\"([^\"]+)\"" _ "${line}")
        list(APPEND wanted ${CMAKE_MATCH_1})
    endforeach()
    set(${result} "" PARENT_SCOPE)
    foreach(module IN LISTS wanted)
        string(MAKE_C_IDENTIFIER "fs_has_${module}" known)
        get_property(asked GLOBAL PROPERTY ${known} SET)
        if(NOT asked)
            execute_process(COMMAND ${python} -c "import importlib.util as u; u.find_spec('${module}') or exit(1)"
                            RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
            set_property(GLOBAL PROPERTY ${known} ${code})
        endif()
        get_property(code GLOBAL PROPERTY ${known})
        if(NOT code EQUAL 0)
            set(${result} ${module} PARENT_SCOPE)
            return()
        endif()
    endforeach()
endfunction()

function(fs_add_python)
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/pick-python.sh OUTPUT_VARIABLE python
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    # One thread per process for numpy: the jobs already fill the machine.
    set(env FLASHSAMPLING_LIBRARY=${PROJECT_BINARY_DIR}/lib/libflashsampling.so
        FLASHSAMPLE=${PROJECT_BINARY_DIR}/bin/flashsample FS_BUILD=${PROJECT_BINARY_DIR}
        PYTHONPATH=${PROJECT_SOURCE_DIR}/python PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1)
    foreach(folder py torch vllm sglang)
        file(GLOB files CONFIGURE_DEPENDS ${folder}/test_*.py)
        foreach(file IN LISTS files)
            cmake_path(GET file STEM stem)
            set(name ${folder}/${stem})
            set(label ${folder})
            if(name STREQUAL py/test_ranks)
                set(label ranks)
            elseif(name IN_LIST long_python)
                set(label long)
            endif()
            if(NOT python)
                fs_add_skip(${name} ${label} "no Python with numpy and pytest was found")
                continue()
            endif()
            set(modules "")
            if(NOT folder STREQUAL py)
                set(modules torch ${folder})
            endif()
            fs_missing_module(missing ${python} ${file} ${modules})
            if(missing)
                fs_add_skip(${name} ${label} "${python} has no ${missing}")
                continue()
            endif()
            fs_pytest(${name} ${label} ${python} ${file} 900 ENV ${env})
            if(folder STREQUAL torch AND stem IN_LIST both_ways)
                fs_pytest("${name} [ctypes]" ${label} ${python} ${file} 900 ENV ${env} FLASHSAMPLING_CALLS=ctypes)
            endif()
        endforeach()
    endforeach()
endfunction()

# The wheel as users install it, with torch and transformers: scripts/python-env.sh makes the environment.
function(fs_add_wheel)
    set(folder ${PROJECT_SOURCE_DIR}/build/python)
    set(python ${folder}/env/bin/python)
    set(needs FIXTURES_REQUIRED wheel)
    fs_test(environment LABELS wheel COMMAND ${PROJECT_SOURCE_DIR}/scripts/python-env.sh TIMEOUT 5400
            PROPERTIES FIXTURES_SETUP wheel)
    fs_test(mypy LABELS wheel COMMAND ${python} -m mypy TIMEOUT 1800 PROPERTIES ${needs})
    fs_test(real_model LABELS wheel COMMAND ${python} scripts/real_model.py TIMEOUT 3600
            PROPERTIES ${needs} FIXTURES_SETUP real)
    set(with_wheel sh -c [[FS_WHEEL=$(cat build/python/env/wheel.txt) exec "$@"]] sh ${python})
    set(env FS_INSTALLED=1 FS_TOOLS=${folder}/tools PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=
        FLASHSAMPLING_LIBRARY= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false)
    list(TRANSFORM package_alone PREPEND py/ OUTPUT_VARIABLE patterns)
    file(GLOB files CONFIGURE_DEPENDS ${patterns} package/test_*.py torch/test_*.py)
    fs_pytest(wheel/py/test_real_screens wheel "${with_wheel}" ${CMAKE_CURRENT_SOURCE_DIR}/py/test_real_screens.py 1800
              ENV ${env} PROPERTIES FIXTURES_REQUIRED real)
    foreach(file IN LISTS files)
        cmake_path(GET file STEM stem)
        cmake_path(GET file PARENT_PATH folder)
        cmake_path(GET folder FILENAME folder)
        fs_pytest(wheel/${folder}/${stem} wheel "${with_wheel}" ${file} 1800 ENV ${env} PROPERTIES ${needs})
        if(folder STREQUAL torch AND stem IN_LIST both_ways)
            fs_pytest("wheel/${folder}/${stem} [ctypes]" wheel "${with_wheel}" ${file} 1800
                      ENV ${env} FLASHSAMPLING_CALLS=ctypes PROPERTIES ${needs})
        endif()
    endforeach()
endfunction()

# ------------------------------------------------------------------------------------------------ checks, CUDA ----

function(fs_add_checks)
    file(GLOB files CONFIGURE_DEPENDS checks/*.py checks/*.sh)
    foreach(file IN LISTS files)
        cmake_path(GET file STEM stem)
        cmake_path(GET file EXTENSION extension)
        set(start python3)
        if(extension STREQUAL .sh)
            set(start sh)
        endif()
        set(labels check)
        if(stem STREQUAL cuda_report)
            set(labels cuda) # compiles for minutes
        endif()
        fs_test(check/${stem} LABELS ${labels} COMMAND ${start} ${file} TIMEOUT 1800 COST 20
                ENV FS_BUILD=${PROJECT_BINARY_DIR} FS_NO_INSTALL=1)
    endforeach()
    fs_test(cuda/build LABELS cuda TIMEOUT 5400 PROPERTIES RUN_SERIAL TRUE
            COMMAND sh -c "command -v nvcc || { echo 'nvcc is not on the PATH'; exit 77; }; exec make cuda")
    set(report ${PROJECT_BINARY_DIR}/junit/cuda-tests.xml)
    fs_test(cuda/tests LABELS cuda TIMEOUT 3600 PROPERTIES RUN_SERIAL TRUE DEPENDS cuda/build
            COMMAND sh -c "command -v nvcc && nvidia-smi -L || { echo 'no nvcc, or no GPU'; exit 77; }
                           exec make test-gpu ARGS=--junitxml=${report}")
endfunction()

function(fs_add_everything_else)
    if(CMAKE_CROSSCOMPILING)
        if(FS_CLI)
            fs_add_rows("test_agree" "")
            if(fs_architecture STREQUAL aarch64)
                fs_add_emulated_cpus()
            endif()
        endif()
        return()
    endif()
    if(FS_CLI)
        if(FS_SANITIZE STREQUAL thread)
            list(APPEND sanitizer_env FLASHSAMPLING_TEST_THREADS=2)
            list(TRANSFORM sanitizer_env APPEND ":suppressions=${CMAKE_CURRENT_SOURCE_DIR}/ranks/tsan.supp"
                 REGEX "^TSAN_OPTIONS")
        elseif(FS_SANITIZE)
            set(sanitizer_env ${without_leaks}) # MPI leaves memory behind; memcheck, with suppressions, looks at ours
        endif()
        fs_add_ranks(ranks "${run_with}" "${sanitizer_env}")
    endif()
    if(FS_SANITIZE)
        return()
    endif()
    if(FS_CLI)
        fs_add_rows("${forced}" "isa/")
    endif()
    fs_add_valgrind()
    fs_add_python()
    fs_add_wheel()
    fs_add_checks()
endfunction()
