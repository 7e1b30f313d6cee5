#!/bin/sh
# First process of the images: lays the loops that were compiled with the image where Numba may write as
# well, then becomes the program that is named.
set -eu
if [ ! -d "$NUMBA_CACHE_DIR" ] && ! cp -R /opt/mksearch/kernels "$NUMBA_CACHE_DIR" 2>/dev/null; then
    printf '%s: %s cannot be written (mount a tmpfs at /tmp: --tmpfs /tmp)\n' "$1" "$NUMBA_CACHE_DIR" >&2
    exit 1
fi
exec "$@"
