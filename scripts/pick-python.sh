#!/bin/sh
# Prints the Python that the tests use: the first of $PYTHON, python3, /usr/bin/python3 that has what they import.
# Fails, with nothing printed, if none does.
for python in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3; do
    if "$python" -c 'import numpy, pytest' >/dev/null 2>&1; then
        command -v "$python"
        exit 0
    fi
done
exit 1
