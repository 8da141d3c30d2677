"""The texts are about this program: the example is the tested file, commands and links exist, the diagram is the table's."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from kvproof import Config, __version__
from kvproof.cli import COMMANDS
from kvproof.core.status import LEGAL_MOVES, Status

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
THEOREMS = [
    "conservation",
    "refcount_exact",
    "no_double_free",
    "ownership_by_status",
    "status_graph",
    "one_queue",
    "table_length",
    "no_shared_write",
    "recompute_keeps_output",
    "fork_shares",
    "group_together",
    "swap_map_bijective",
    "swap_preserves_view",
    "copy_target_exclusive",
    "no_swap_both_ways",
    "no_hazard_ordered",
    "no_hazard_fenced",
    "plan_reports_tables",
    "budget_exact",
    "victim_is_last",
    "preempt_terminates",
    "victim_not_in_plan",
    "infeasible_refused",
    "total",
    "no_deadlock",
    "head_advances",
    "every_request_ends",
    "bounded_preemptions",
]


def module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


# --- the example ------------------------------------------------------------------------------------------------------


def test_the_readme_shows_the_tested_example():
    shown = re.search(r"<!-- example: begin -->\n```python\n(.*?)```\n<!-- example: end -->", README, re.DOTALL)
    assert shown is not None and shown[1] == (ROOT / "examples" / "embed.py").read_text(encoding="utf-8")


def test_the_page_about_policies_shows_a_tested_order():
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- order: begin -->\n```python\n(.*?)```\n<!-- order: end -->", page, re.DOTALL)
    example = (ROOT / "examples" / "ageing.py").read_text(encoding="utf-8")
    assert shown is not None and example.startswith(shown[1]) and example[len(shown[1]) :].startswith("\n\ndef serve")


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("blocks", [6, 8, 12])
def test_the_example_gives_the_same_tokens_in_any_pool(mode, blocks, capsys):
    embed = module(ROOT / "examples" / "embed.py")
    right = embed.serve(Config(num_gpu_blocks=100, num_cpu_blocks=0, block_size=4), "recompute")
    calm = capsys.readouterr().out
    assert calm.count("preempted 0 times") == 6 and all(len(tokens) == 16 + k for k, tokens in right.items())
    assert embed.serve(Config(num_gpu_blocks=blocks, num_cpu_blocks=24, block_size=4), mode) == right
    out = capsys.readouterr().out
    assert out.count("FINISHED_LENGTH_CAPPED, 12 tokens") == 6 and "preempted 0 times" in out and out != calm


def test_the_example_cuts_long_prompts(capsys):
    embed = module(ROOT / "examples" / "embed.py")
    right = embed.serve(Config(num_gpu_blocks=100, num_cpu_blocks=0, block_size=4), "recompute")
    small = Config(num_gpu_blocks=8, num_cpu_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=4)
    assert embed.serve(small, "swap") == right


# --- commands and targets ---------------------------------------------------------------------------------------------


SPANS = re.compile(r"`([^`\n]+)`|^    (.+)$", re.MULTILINE)
"""Code: in backquotes, or a line set in by four spaces."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_named_exist(page):
    text = page.read_text(encoding="utf-8")
    code = "\n".join(inline or line for inline, line in SPANS.findall(text))
    named = set(re.findall(r"(?:^|\s|/)kvproof ([a-z]+)", code, re.MULTILINE))
    assert named <= set(COMMANDS), f"{page.name} names {sorted(named - set(COMMANDS))}"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", code)) <= targets


def test_every_command_is_in_the_readme():
    rows = dict(re.findall(r"^\| `kvproof ([a-z]+)[^`]*` \| (.+) \|$", README, re.MULTILINE))
    assert rows.keys() == COMMANDS.keys()
    for name, text in rows.items():
        there = importlib.util.find_spec(f"kvproof.cli.{name}") is not None
        assert there == ("not yet" not in text), f"kvproof {name} is {'' if there else 'not '}there, the README says: {text}"


def test_every_theorem_is_in_the_readme_once_in_order():
    assert re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE) == THEOREMS


# --- links, paths, the diagram ----------------------------------------------------------------------------------------


def headings(text: str) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists() and goal.is_relative_to(ROOT), target
        assert not anchor or anchor in headings(goal.read_text(encoding="utf-8")), target


NAMED = re.compile(
    r"`((?:core|store|spec|proofs|policies|backend_fake|kvproof|sim|bench|fuzz|tests|docs|examples|scripts)/[\w./-]*)(?: [^`]*)?`"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_exist(page):
    for name in NAMED.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_diagram_of_statuses_is_that_of_the_table():
    script = module(ROOT / "scripts" / "status_diagram.py")
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert script.replaced(text) == text, "run: python scripts/status_diagram.py --write"
    drawn = script.diagram()
    assert drawn.count("-->") == len(LEGAL_MOVES) and all(s.name in drawn for s in Status if s != Status.ABSENT)
    with pytest.raises(ValueError, match="are not there"):
        script.replaced("a page without marks")


def test_no_page_names_a_place_of_this_machine():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.$])/(?:home|root|work|tmp|mnt)/", text), page.name


def test_the_version_is_one(program):
    from importlib.metadata import version

    assert version("kvproof") == __version__
    assert program("--version")[1] == f"kvproof, version {__version__}\n"
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert sys.version_info[:2] in ((3, 11), (3, 12), (3, 13))
