"""How to start N processes with each MPI that is here: as root too, and on fewer cores than ranks.

    for name, launch in launchers().items():
        subprocess.run([*launch(4), program], env={**os.environ, **ENVIRONMENT})

tests/register.cmake says the same to ctest.
"""

import shutil

ENVIRONMENT = {
    # Containers are root and often have no ptrace, which Open MPI would copy between processes with.
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    # One machine, and a bare one has no ssh, without which Open MPI would not start.
    "OMPI_MCA_plm": "isolated",
    # MPICH's UCX replaces malloc, which sanitizers and valgrind do too.
    "UCX_MEM_EVENTS": "no",
}

# Name, program, and how it is told that there are fewer cores than ranks. Debian installs both side by side.
TABLE = (
    ("openmpi", "mpirun.openmpi", ("--oversubscribe", "--bind-to", "none", "-n")),
    ("mpich", "mpirun.mpich", ("-n",)),
)


def launchers():
    """{name: launch}; launch(n) is the beginning of a command that starts n processes."""
    found = {}
    for name, program, options in TABLE:
        if shutil.which(program):
            found[name] = lambda n, start=(program, *options): [*start, str(n)]
    return found
