#!/bin/sh
# aarch64_python.sh DIR ARGS...    runs an AArch64 Python with Jangin and its dependencies on an x86-64 Debian,
# under QEMU's user mode (package qemu-user-static). The first call unpacks Debian's packages and PyPI's wheels
# into DIR: some minutes, 500 MB, and nothing is installed. Jangin is that of this folder.
#     sh benchmarks/aarch64_python.sh /tmp/arm -c 'import jangin; print(jangin.load("model.jgn"))'
# CPU: QEMU's processor (default cortex-a72: with max, QEMU 7.2 gives wrong float64 products). Processes that
# Python starts, as jangin.compile does, run so too.
set -eu
mkdir -p "$1"; D=$(cd "$1" && pwd); shift
HERE=$(cd "$(dirname "$0")/.." && pwd); HOST=$(. /etc/os-release; echo "$VERSION_CODENAME")
if [ ! -e "$D/.done" ]; then
    mkdir -p "$D/apt/parts" "$D/apt/lists/partial" "$D/apt/archives/partial" "$D/debian" "$D/wheels" "$D/site"; : > "$D/empty"
    for f in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
        [ ! -s "$f" ] || sed "s/\b$HOST/trixie/g" "$f" > "$D/apt/parts/$(basename "$f" | sed 's/^sources.list/debian.list/')"
    done
    apt() {
        apt-get -qq -oAPT::Architecture=arm64 -oAPT::Architectures=arm64 -oDir::State::Lists="$D/apt/lists" \
            -oDir::Etc::SourceList=/dev/null -oDir::Etc::SourceParts="$D/apt/parts" -oDir::Cache="$D/apt" \
            -oDir::State::status="$D/empty" -oAPT::Sandbox::User=root "$@"
    }
    apt update
    apt install -y --no-install-recommends --download-only libc6 libstdc++6 libffi8 python3.13-minimal libpython3.13-stdlib > "$D/log"
    for f in "$D"/apt/archives/*.deb; do dpkg -x "$f" "$D/debian"; done
    [ -e "$D/debian/lib" ] || ln -s usr/lib "$D/debian/lib"
    python3 -m pip download -q --only-binary=:all: --python-version 3.13 --implementation cp --abi cp313 --abi abi3 --abi none \
        --platform manylinux2014_aarch64 --platform manylinux_2_26_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux_2_28_aarch64 -d "$D/wheels" numpy onnx llvmlite ml_dtypes platformdirs rich typer 2>> "$D/log"
    for w in "$D"/wheels/*.whl; do python3 -m zipfile -e "$w" "$D/site"; done
    touch "$D/.done"
fi
# sys.executable is this script, which the system can start, unlike a program for AArch64
cat > "$D/python" << END
#!/bin/sh
exec env PYTHONHOME=/usr PYTHONPATH="$HERE:$D/site" PYTHONDONTWRITEBYTECODE=1 \\
    qemu-aarch64-static -0 "$D/python" -cpu "${CPU:-cortex-a72}" -L "$D/debian" "$D/debian/usr/bin/python3.13" "\$@"
END
chmod +x "$D/python"
exec "$D/python" "$@"
