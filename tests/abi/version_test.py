"""Each package of the project has the project's version: version_test.py"""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r"^project\(hvd VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M).group(1)
# Files, and what stands before the version in each place. Rust's lock files have it for each of its crates.
PLACES = {
    "include/hvd/hvd.h": ['#define HVD_VERSION_STRING "'],
    "bindings/python/hvd/__init__.py": ['__version__ = "'],
    "bindings/horovod/pyproject.toml": ["+hvd."],
    "bindings/node/package.json": ['"version": "'],
    "bindings/rust/Cargo.toml": ['\nversion = "'],
    "bindings/rust/Cargo.lock": ['name = "hvd"\nversion = "', 'name = "hvd-sys"\nversion = "'],
    "bindings/rust/hvd/Cargo.toml": ['"../hvd-sys", version = "'],
    "bindings/rust/burn/Cargo.toml": ['\nversion = "', '"../hvd", version = "'],
    "bindings/rust/burn/Cargo.lock": [
        'name = "hvd"\nversion = "', 'name = "hvd-sys"\nversion = "', 'name = "hvd-burn"\nversion = "'
    ],
    "docs/backends.md": ["\nlibhvd "],
    "docs/go.md": ["libhvd/hvd v"],
    "docs/packages.md": ["out/wheels/hvd-"],
}


class Version(unittest.TestCase):
    def test_each_package_has_the_version_of_the_project(self):
        for path, before in PLACES.items():
            text = (ROOT / path).read_text()
            for words in before:
                found = re.findall(re.escape(words) + r"(\d+\.\d+\.\d+)", text)
                with self.subTest(file=path, after=words.strip()):
                    self.assertEqual({VERSION}, set(found))

    def test_the_numbers_of_the_header_are_those_of_its_text(self):
        header = (ROOT / "include/hvd/hvd.h").read_text()
        numbers = [
            re.search(rf"#define HVD_VERSION_{part} (\d+)", header).group(1)
            for part in ("MAJOR", "MINOR", "PATCH")
        ]
        self.assertEqual(VERSION, ".".join(numbers))

    def test_the_changes_begin_with_this_version(self):
        first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
        self.assertEqual(VERSION, first.group(1))


if __name__ == "__main__":
    unittest.main()
