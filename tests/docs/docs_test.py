"""The texts agree with the code: README's example, links, names of tests."""
import re
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(
        (ROOT / "bindings").rglob("*.md"))
]

SOURCES = (".cc", ".h", ".c", ".py", ".rs", ".go", ".sh")


def test_sources():
    for pattern in ("*.cc", "*.c", "*.py", "*.h", "CMakeLists.txt"):
        for path in (ROOT / "tests").rglob(pattern):
            yield path.read_text()


class Docs(unittest.TestCase):
    def test_readme_shows_the_example(self):
        blocks = re.findall(r"```c\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
        self.assertIn((ROOT / "examples" / "minimal.c").read_text(), blocks)

    def test_pages_show_lines_of_programs_that_are_tested(self):
        """Blocks without what a page leaves out ("...") are lines of a program, in its order."""
        for page, language, sources in (
            ("rust", "rust", ("hvd/src/lib.rs", "burn/examples/train.rs")),
            ("go", "go", ("examples/minimal/main.go",)),
        ):
            blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.S)
            self.assertEqual(len(sources), len(blocks), page)
            for block, source in zip(blocks, sources):
                text = (ROOT / "bindings" / page / source).read_text()
                lines = iter([line.removeprefix("//!").strip() for line in text.splitlines()])
                for line in block.splitlines():
                    wanted = line.strip()
                    self.assertTrue(wanted in ("", "...") or any(wanted == other for other in lines),
                                    f"docs/{page}.md: {source} has no line '{wanted}' at its place")

    def test_links_lead_somewhere(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
                if not re.match(r"\w+:", target):
                    self.assertTrue((page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}")

    def test_files_that_are_named_exist(self):
        roots = ("src", "tests", "include", "scripts", "examples", "docs", "cmake", "pkgconfig", "bindings")
        for page in PAGES:
            for name in re.findall(rf"`((?:{'|'.join(roots)})/[\w./-]*\w)`", page.read_text()):
                self.assertTrue((ROOT / name).exists(), f"{page.relative_to(ROOT)}: {name}")

    def test_tests_of_the_contract_exist(self):
        sources = "\n".join(test_sources())
        contract = (ROOT / "docs" / "contract.md").read_text()
        named = set(re.findall(r"`([A-Z]\w+\.\w+)`", contract))
        known = {".".join(pair) for pair in re.findall(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", sources)}
        self.assertEqual([], sorted(named - known))
        named = set(re.findall(r"`(test_\w+)`", contract))
        self.assertEqual([], sorted(named - set(re.findall(r"\bdef (test_\w+)", sources))))
        named = set(re.findall(r"`(\w+_test)`", contract))
        known = set(re.findall(r"\b(?:hvd_\w*test\(|add_test\(NAME )\s*(\w+)", sources))
        self.assertEqual([], sorted(named - known))
        promises = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", contract, flags=re.M)]
        self.assertEqual(list(range(1, 14)), promises[:13])
        self.assertEqual(sorted(set(promises)), promises)

    def test_files_say_their_purpose_first(self):
        """In a comment on the first line, or on the second behind #!."""
        names = subprocess.run(
            ["git", "ls-files", "src", "include", "tests", "examples", "bindings", "scripts"], cwd=ROOT,
            capture_output=True, text=True).stdout.split()
        if not names:
            self.skipTest("git does not say which files there are")
        for name in names:
            path = ROOT / name
            if path.suffix not in SOURCES or "recorded" in name or not path.exists():
                continue
            lines = [line for line in path.read_text().split("\n")[:2] if not line.startswith("#!")]
            if any(lines):
                self.assertRegex(lines[0], r"^\s*(//|/\*|#(?! *(include|define|pragma|if))|r?[\"\']{3})",
                                 name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
