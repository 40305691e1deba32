"""The texts agree with the code: README's example, links, names of tests; files and commits
say what they are for."""
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(
        (ROOT / "bindings").rglob("*.md"))
]

# What has no comments, or is recorded as it was.
WITHOUT_PURPOSE = re.compile(r"recorded/|\.(md|svg|lock|json|mod|typed)$|LICENSE$|\.gitignore$")
COMMENT = re.compile(r"\s*(//|/\*|#(?! *(include|define|pragma|if))|<!--|r?[\"\']{3})")
WIDTH, SENTENCE = 110, 25
# Files whose sentences are counted: the pages, except the record of changes, and the public headers.
PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"] + sorted((ROOT / "include/hvd").iterdir())
# Lines that are comments, by what marks them in the file's language.
SLASHES, HASHES = re.compile(r"\s*(//|/\*|\*)"), re.compile(r"\s*(#(?!!)|r?\"{3})")
HASHED = (".py", ".sh", ".cmake", ".txt", ".in", ".toml", ".yaml", ".sbatch", ".service", ".manifest", "")


def tracked():
    """Texts by name, as git knows them."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    return [(name, (ROOT / name).read_text()) for name in names if name and (ROOT / name).is_file()]


def too_wide(name, text):
    """Numbers of the lines of prose, in pages and comments, that are wider than WIDTH. Tables, images and
    what a page shows of code can't be broken."""
    comment = HASHES if Path(name).suffix in HASHED else SLASHES
    shown = False
    for number, line in enumerate(text.split("\n"), 1):
        if name.endswith(".md"):
            shown ^= line.lstrip().startswith("```")
            prose = not shown and not re.match(r"\s*(\||!\[)", line)
        else:
            prose = comment.match(line) is not None
        if prose and len(line) > WIDTH:
            yield number


def commented(text):
    """The comment of each line of a source, where "\\n" begins one that stands behind code."""
    inside = False
    for line in text.split("\n"):
        begin = None if inside else re.search(r"/\*+|//+<?", line)
        if begin or inside:
            body, ended, _ = line[begin.end() if begin else 0:].partition("*/")
            behind = "\n" if begin and line[:begin.start()].strip() else ""
            yield behind + (body if begin else re.sub(r"^\s*\*(?=\s|$)", "", body))
            inside = not ended and (inside or begin.group().startswith("/*"))
        else:
            yield ""


def shown_prose(text):
    """The lines of a page, empty where it shows code or has a heading."""
    shown = False
    for line in text.split("\n"):
        shown ^= line.lstrip().startswith("```")
        yield "" if shown or re.match(r"\s*(```|#)", line) else line


def paragraphs(name, text):
    """(number of its first line, its lines as one) for each paragraph, list item and table cell: in a page
    without the code that it shows, in a header of its comments."""
    number, gathered = 0, ""
    for at, line in enumerate([*(shown_prose if name.endswith(".md") else commented)(text), ""], 1):
        if gathered and re.match(r"\n|\s*(\||[-*] |\d+\. |$)", line):
            yield number, gathered
            gathered = ""
        if re.match(r"\s*\|", line):
            yield from ((at, cell) for cell in re.split(r"(?<!\\)\|", line))
        elif line.strip():
            number = number if gathered else at
            gathered += line + " "


def long_sentences(name, text):
    """(line where the paragraph begins, words, sentence) for each sentence of more than SENTENCE words. A
    list of code spans is one word; ":" and ";" end a sentence."""
    for number, paragraph in paragraphs(name, text):
        linkless = re.sub(r"\]\([^)]*\)", "]", paragraph)
        prose = re.sub(r"`[^`]*`(,\s+`[^`]*`)*", "code", linkless)
        for sentence in re.split(r"(?<=[.:;?!])[)\]\"'*_]*\s", prose):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > SENTENCE:
                yield number, len(words), " ".join(sentence.split())


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
            ("rust", "rust", ("hvd/src/lib.rs", *2 * ["hvd/examples/sharded_adam.rs"],
                              "burn/examples/train.rs")),
            ("go", "go", ("examples/minimal/main.go", *2 * ["examples/sharded_adam/main.go"])),
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
            prose = "\n".join(shown_prose(page.read_text()))
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose):
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
        self.assertEqual(list(range(1, len(promises) + 1)), promises)
        self.assertGreaterEqual(len(promises), 19)

    def test_files_say_their_purpose_first(self):
        """In a comment on the first line, or on the second behind #! or <!doctype>."""
        files = tracked()
        if not files:
            self.skipTest("git does not say which files there are")
        silent = []
        for name, text in files:
            lines = [line for line in text.split("\n")[:2] if not re.match("#!|<!doctype", line)]
            if not WITHOUT_PURPOSE.search(name) and any(lines) and not COMMENT.match(lines[0]):
                silent.append(name)
        self.assertEqual([], silent)

    def test_prose_keeps_to_its_width(self):
        wide = [f"{name}:{number}" for name, text in tracked() if "recorded/" not in name
                for number in too_wide(name, text)]
        self.assertEqual([], wide)

    def test_a_commit_says_why(self):
        hook = ROOT / "scripts/hooks/commit-msg"
        for message, fits in (("wire: x is y\n\nSince z.\n", True), ("wire: x is y\n", False),
                              ("wire: x is y\n\n# a comment of git's\n", False),
                              ("wire: x is y\n\nSigned-off-by: A <a@b.example>\n", False),
                              ("wire: x is y\nSince z.\n", False), ("x is y\n\nSince z.\n", False)):
            with tempfile.NamedTemporaryFile("w", suffix=".msg") as file:
                file.write(message)
                file.flush()
                done = subprocess.run([hook, file.name], capture_output=True, text=True)
            self.assertEqual(fits, done.returncode == 0, (message, done.stderr))

    def test_wide_prose_is_seen(self):
        wide = "x" * WIDTH
        for name, text in (("a.md", wide + "y"), ("a.md", f"```\n```\n{wide}y"), ("a.c", f" * {wide}"),
                           ("a.cc", f"  // {wide}"), ("a.py", f"# {wide}"), ("hooks/a", f"# {wide}"),
                           ("a.py", f'"""{wide}')):
            self.assertEqual(1, len(list(too_wide(name, text))), text)
        for name, text in (("a.md", f"| {wide}"), ("a.md", f"```\n{wide}y\n```"), ("a.md", wide),
                           ("a.c", f"int {wide};"), ("a.css", f"#{wide}"), ("a.sh", f"#!{wide}")):
            self.assertEqual([], list(too_wide(name, text)), text)

    def test_sentences_are_short(self):
        for path in PROSE:
            name = str(path.relative_to(ROOT))
            with self.subTest(name):
                self.assertEqual("", "\n".join(
                    f"{name}:{number}: {words} words, of {SENTENCE}: {sentence}"
                    for number, words, sentence in long_sentences(name, path.read_text())))

    def test_long_sentences_are_seen(self):
        full = " ".join(["word"] * SENTENCE)
        for name, text in (("a.md", full + " more"), ("a.md", f"- {full}\n  more"),
                           ("a.md", f"| {full} more | b |"),
                           ("a.md", f"One. Two\n{full}. Three."), ("a.md", f"{full} `b c`"),
                           ("a.h", f"/* {full}\n * more */"), ("a.h", f"int a; /* {full} more */"),
                           ("a.h", f"int a; // {full}\n// more"), ("a.h", f"int a; /* {full}\n  more */")):
            self.assertEqual(1, len(list(long_sentences(name, text))), text)
        for name, text in (("a.md", full), ("a.md", f"{full}\n\nmore"), ("a.md", f"{full}\n- more"),
                           ("a.md", f"| {full} | more |"), ("a.md", f"(One: {full}.) More; {full}"),
                           ("a.md", f"```\n{full} more\n```"), ("a.md", full[5:] + " [`a b`](c d)"),
                           ("a.md", f"{full[5:]} `a`,\n`b c`"),
                           ("a.h", f"int {full} more;"),
                           ("a.h", f"int a; /* {full} */\nint b; /* more */"),
                           ("a.h", f"/* {full} */\nint a; /* b */"),
                           ("a.h", f"/* {full}\n *\n * more */")):
            self.assertEqual([], list(long_sentences(name, text)), text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
