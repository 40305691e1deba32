"""How the library is found, and what is said when it is not, or is another one."""

import ctypes.util
import shutil
import subprocess

import pytest

import hvd

IMPORT = "import hvd; print(hvd.library_path)"


def test_hvd_library_names_file_or_directory(python):
    path = hvd.library_path
    assert python(IMPORT, environment={"HVD_LIBRARY": path}).stdout.strip() == path
    directory = path.rsplit("/", 1)[0]
    assert python(IMPORT, environment={"HVD_LIBRARY": directory}).stdout.strip() == path


def test_a_missing_library_is_named(python):
    done = python(IMPORT, environment={"HVD_LIBRARY": "/nowhere/libhvd.so.1"}, check=False)
    assert done.returncode == 1
    assert "/nowhere/libhvd.so.1: no such file" in done.stderr and "HVD_LIBRARY" in done.stderr


def test_another_library_is_refused(python):
    path = "/lib/x86_64-linux-gnu/libm.so.6"
    if not shutil.os.path.exists(path):
        pytest.skip("no libm at " + path)
    done = python(IMPORT, environment={"HVD_LIBRARY": path}, check=False)
    assert "it is no libhvd: it has no function hvd_version" in done.stderr


@pytest.mark.parametrize("name, version, reason", [
    ("libhvd.so.1", "9.1.2", "it is version 9.1.2; this package needs 0.2 or a later 0.x (ABI 1)"),
    ("libhvd.so.7", "0.2.0", "it has ABI version 7; this package needs 1"),
    ("libhvd.so.1", "0.2.0", "has no function hvd_status_name: it is too old"),
])
def test_another_version_is_refused(python, tmp_path, name, version, reason):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library = tmp_path / name
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], check=True, text=True,
                   input=f'const char *hvd_version(void) {{ return "{version}"; }}')
    done = python(IMPORT, environment={"HVD_LIBRARY": str(library)}, check=False)
    assert done.returncode == 1 and reason in done.stderr


def test_version_and_options():
    assert hvd.version().startswith("0.")
    assert "HVD_INIT_TIMEOUT" in hvd.describe_options()


def test_backends(alone):
    found = {backend.name: backend for backend in hvd.backends()}
    assert found["self"].usable and "allreduce" in found["self"].collectives and "float32" in found[
        "self"].dtypes
    for backend in found.values():
        assert backend.usable or backend.reason
    choice = hvd.backend_choice("broadcast", "int8")
    assert choice.name == "self" and choice.reason
    with pytest.raises(hvd.InvalidError, match="expected one of host, cuda"):
        hvd.backend_choice(memory="tape")


def test_import_needs_neither_numpy_nor_torch(python):
    python("""
        import sys
        sys.modules["numpy"] = sys.modules["torch"] = None
        import hvd
        hvd.init()
        data = bytearray(b"abc")
        assert hvd.allreduce(data, op=hvd.Sum).tolist() == [97, 98, 99]
        assert hvd.allgather(data).tobytes() == b"abc"
        hvd.shutdown()
    """)
