"""States and plans as JSON: what is read is what was written, a scheduler goes on from it, and everything else is refused."""

import copy
import json
from enum import IntEnum

import attrs
import pytest
from calls import answers, any_config, call, calls, everything, modes, pressed
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import Config, Scheduler
from kvproof.codec import codec_of
from kvproof.fuzz.oracle import contents
from kvproof.serial import WRITTEN, LoadError, plan_from_json, plan_to_json, state_codec, state_from_json, state_to_json
from kvproof.store.plan import Plan
from kvproof.store.state import State
from kvproof.store.versions import NAMES, Version, maps_of
from kvproof.strictjson import ScenarioError


def through_text(value):
    """As another process reads it."""
    return json.loads(json.dumps(value, allow_nan=False))


def forked() -> Scheduler:
    """Two groups, one of two sequences that share blocks, on the GPU."""
    s = Scheduler(Config(num_gpu_blocks=8, num_cpu_blocks=4, block_size=4))
    g = s.add_request(6, 9)
    s.add_request(3, 9)
    s.schedule()
    s.commit()
    s.fork(g)
    return s


# --- the round trip ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(any_config, modes, calls, calls)
def test_a_state_that_was_written_and_read_goes_on_as_the_first(config, mode, before, after):
    s = Scheduler(config, mode)
    answers(s, before)
    moment = s.snapshot()
    written = state_to_json(s.state)
    state = state_from_json(through_text(written))
    assert contents(state) == contents(s.state) and state.config == s.state.config
    assert state_to_json(state) == written
    assert state.free_blocks() == s.state.free_blocks()
    for field in attrs.fields(State):
        if field.name not in ("maps", "gpu", "cpu"):
            assert getattr(state, field.name) == getattr(s.state, field.name), field.name
    t = Scheduler(config, mode)
    t.restore(attrs.evolve(moment, state=state))  # with what is kept beside it
    for one in after:
        assert call(s, *one) == call(t, *one)
        assert contents(s.state) == contents(t.state)
    assert contents(state) == contents(moment.state)


@settings(deadline=None, max_examples=40)
@given(any_config, modes, calls)
def test_plans_come_back(config, mode, some):
    plans = [answer for answer in answers(Scheduler(config, mode), some) if isinstance(answer, Plan)]
    for plan in plans:
        again = plan_from_json(through_text(plan_to_json(plan)))
        assert again == plan and again.scheduled == plan.scheduled and again.new_blocks == plan.new_blocks


def test_the_types_are_those_of_the_store():
    state = state_from_json(through_text(state_to_json(forked().state)))
    rows = state.table.to_dict()
    assert set(rows) == {0, 1, (0, 1)} and all(type(blocks) is list and n == len(blocks) for blocks, n in rows.values())
    assert rows[0][0] == rows[0, 1][0] and rows[0][0] is not rows[0, 1][0]
    assert state.members.to_dict() == {0: ((0, 1), 2, ((0, 0), (1, 6)))}
    assert all(type(bucket) is set for name in ("due", "expiry") for bucket in getattr(state, name).to_dict().values())
    assert state.running == ((0, 1), (0, 1)) and type(state.issued) is bool and state.gpu[0] == state_to_json(state)["gpu"][0]


def test_of_a_row_that_versions_share_only_the_visible_part_is_written():
    s = pressed("recompute")
    old = s.state
    everything(s)
    assert any(len(blocks) > n for blocks, n in old.table.to_dict().values())
    state = state_from_json(state_to_json(old))
    assert contents(state) == contents(old)


def test_everything_is_written():
    """Each field and map by its name: one that is forgotten cannot come back."""
    written = state_to_json(forked().state)
    assert list(written) == ["format", *(field.name for field in attrs.fields(State))]
    assert tuple(written["maps"]) == WRITTEN and written["format"] == 1
    assert list(written["config"]) == [field.name for field in attrs.fields(Config)]
    plan = plan_to_json(pressed().schedule())
    assert list(plan) == ["format", *(field.name for field in attrs.fields(Plan))]


@attrs.frozen(eq=False, slots=False, repr=False)
class Later(State):
    """A state with fields that a later version may have."""

    new_turns: int = 0
    new_paused: bool = False
    new_ranks: tuple[tuple[int, str], ...] = ()
    new_last: int | None = None
    new_timing: tuple[float, float | None] = (0, None)
    new_held: frozenset[int] = frozenset()
    new_other: Config | None = None


def test_a_field_that_is_added_is_covered():
    fields = {field.name: getattr(forked().state, field.name) for field in attrs.fields(State)}
    more = {
        "new_turns": 3,
        "new_paused": True,
        "new_ranks": ((1, "a"),),
        "new_last": None,
        "new_timing": (1, 0.1),
        "new_held": frozenset({8, 1}),
    }
    later = Later(**fields, **more, new_other=Config(num_gpu_blocks=1, num_cpu_blocks=2))
    codec = state_codec(Later)
    written = through_text(codec.write(later))
    assert (written["new_held"], written["new_ranks"], written["new_last"], written["new_paused"]) == (
        [1, 8],
        [[1, "a"]],
        None,
        True,
    )
    again = codec.read(written, "state")
    assert all(getattr(again, name) == value for name, value in more.items()) and again.new_other == later.new_other
    for name, value in {
        "new_turns": True,
        "new_paused": 1,
        "new_ranks": [[1]],
        "new_last": "x",
        "new_timing": [float("nan"), 1],
        "new_held": [1, 1],
    }.items():
        with pytest.raises(ScenarioError, match=f"^state.{name}"):
            codec.read({**written, name: value}, "state")


def test_a_type_that_is_not_known_is_named():
    with pytest.raises(TypeError, match=r"knows no JSON for dict\[int, complex\]"):
        codec_of(dict[int, complex])


def test_numbers_are_written_as_plain_numbers_and_nothing_else_as_one():
    class Colour(IntEnum):
        RED = 4

    assert type(codec_of(int).write(Colour.RED)) is int
    for kind, value in ((int, True), (int, None), (bool, 1), (str, 3), (float, True), (float, float("inf"))):
        with pytest.raises(TypeError, match="declared"):
            codec_of(kind).write(value)


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(edit, said: str) -> None:
    """The state of `forked` after `edit(json)` is refused, and the message begins so."""
    written = state_to_json(forked().state)
    edit(written)
    with pytest.raises(LoadError) as found:
        state_from_json(written)
    assert str(found.value).startswith(said) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda j: j.pop("clock"), "state.clock: is required"),
        (lambda j: j.pop("format"), "state.format: is required"),
        (lambda j: j.update(format=2), "state.format: must be <= 1, got 2"),
        (lambda j: j.update(extra=1), "state.extra: unknown field, known are config, clock"),
        (lambda j: j.update({7: 1}), "state: must be an object with names as keys"),
        (lambda j: j.update(clock=True), "state.clock: must be an integer, got true"),
        (lambda j: j.update(clock=2**129), "state.clock: must be <= "),
        (lambda j: j.update(issued=0), "state.issued: must be true or false, got 0"),
        (lambda j: j.update(gpu=7), "state.gpu: must be an array, got 7"),
        (lambda j: j["gpu"].append("a"), 'state.gpu[5]: must be an integer, got "a"'),
        (lambda j: j.update(gpu_free=3), "state.gpu_free: must be the 5 blocks of state.gpu, got 3"),
        (lambda j: j.update(gpu=j["gpu"][1:], gpu_free=4), "state.gpu: 4 blocks here and 3 in tables must be the 8"),
        (
            lambda j: j["config"].update(num_gpu_blocks=2**40),
            "state.gpu: 5 blocks here and 3 in tables must be the 1099511627776",
        ),
        (lambda j: j["config"].update(block_size=0), "state.config.block_size: must be >= 1, got 0"),
        (lambda j: j["config"].pop("vllm_v0"), "state.config.vllm_v0: is required"),
        (lambda j: j["config"].update(watermark=1), "state.config.watermark: unknown field"),
        (lambda j: j.update(running=[[0, 1]]), "state.running: must be an array of 2, got [[0, 1]]"),
        (lambda j: j.update(running=[[0, 1], [0, None]]), "state.running[1][1]: must be an integer, got null"),
        (lambda j: j["maps"]["limit"].pop(), "state.maps.limit: must have the groups of state.maps.status, but for group 1"),
        (
            lambda j: j["maps"]["prompt"].append([7, 1]),
            "state.maps.prompt: must have the groups of state.maps.status, but for gro",
        ),
        (lambda j: j.update(waiting=[[1], [1]]), "state: breaks the specification: "),
        (lambda j: j.update(running=[[0], [0, 1]]), "state.running: must have as many keys as groups, has 1 and 2"),
        (lambda j: j["maps"].pop("refs"), "state.maps.refs: is required"),
        (lambda j: j["maps"].update(more=[]), "state.maps.more: unknown field"),
        (lambda j: j["maps"].update(length={}), "state.maps.length: must be an array, got {}"),
        (lambda j: j["maps"]["length"].append([1]), "state.maps.length[2]: must be a pair [key, value], got [1]"),
        (lambda j: j["maps"]["length"].append([1, 5]), "state.maps.length[2][0]: is a key already"),
        (lambda j: j["maps"]["length"].append(["1", 5]), 'state.maps.length[2][0]: must be an integer, got "1"'),
        (lambda j: j["maps"]["table"][0].__setitem__(1, 5), "state.maps.table[0][1]: must be an array, got 5"),
        (lambda j: j["maps"]["table"][1].__setitem__(0, [0, 0]), "state.maps.table[1][0][1]: must be a sequence other than 0"),
        (lambda j: j["maps"]["due"][0][1].append(0), "state.maps.due[0][1]: must not name anything twice"),
        (lambda j: j["maps"]["members"][0][1].append(0), "state.maps.members[0][1]: must be an array of 3"),
        (lambda j: j["maps"]["refs"][0].__setitem__(1, 2**60), "state.maps.refs[0][1]: must be 2, as often as tables name"),
        (lambda j: j["maps"]["status"][0].__setitem__(1, 3), "state: breaks the specification: "),
        (lambda j: j["maps"]["born"][0].__setitem__(1, 0), "state: breaks the specification: "),
        (lambda j: j.update(seqs=9), "state: breaks the specification: "),
        (lambda j: j["maps"].update(due=[]), "state: breaks the specification: "),
        (lambda j: j["gpu"].__setitem__(1, j["gpu"][0]), "state.gpu[1]: block 3 is there already"),
    ],
)
def test_a_state_that_is_not_right_is_refused_by_its_place(edit, said):
    refused(edit, said)


@pytest.mark.parametrize("value", [None, [], 3, "state", True])
def test_what_is_no_object_is_refused(value):
    for read, what in ((state_from_json, "state"), (plan_from_json, "plan")):
        with pytest.raises(LoadError, match=f"^{what}: must be an object"):
            read(value)


def test_a_plan_that_is_not_right_is_refused_by_its_place():
    plan = plan_to_json(pressed().schedule())
    for edit, said in (
        ({"format": 0}, "plan.format: must be >= 1, got 0"),
        ({"decode": None}, "plan.decode: must be true or false, got null"),
        ({"preempted": [[1, 2]]}, r"plan.preempted\[0\]\[1\]: must be a string, got 2"),
        ({"slots": [[1, 2, 3]]}, r"plan.slots\[0\]: must be an array of 4"),
        ({"clock": 3}, "plan.clock: unknown field"),
    ):
        with pytest.raises(LoadError, match=f"^{said}"):
            plan_from_json({**plan, **edit})
    with pytest.raises(LoadError, match=r"^plan.epoch: is required"):
        plan_from_json({name: value for name, value in plan.items() if name != "epoch"})


def places(value, path=()):
    """The paths of all parts of a JSON value."""
    yield path
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


ODD = st.sampled_from([None, True, -1, 0, 1, 2, 2**59, -(2**59), 2**130, 1.5, "", "x", [], [0], [[0, 0]], {}, {"a": 1}])


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_whatever_is_changed_is_refused_or_is_a_sound_state(data):
    """Never another exception, never a state that goes wrong later."""
    s = data.draw(st.sampled_from([forked, pressed]))()
    written = through_text(state_to_json(s.state))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([p for p in places(written) if p]))
        *front, last = path
        part = written
        for key in front:
            part = part[key]
        if data.draw(st.booleans()):
            part[last] = copy.deepcopy(data.draw(ODD))
        else:
            del part[last]
    try:
        state = state_from_json(copy.deepcopy(written))
    except LoadError as error:
        assert "\n" not in str(error) and str(error).startswith("state")
        return
    assert state_to_json(state) == written
    t = Scheduler(state.config, "swap", check=True)
    t.restore(state)
    for _ in range(4):
        call(t, 14, 0, 0)


def test_a_map_of_plain_numbers_needs_no_code_here():
    """`maps_of` makes what NAMES says; so does the JSON."""
    written = state_to_json(forked().state)
    version = Version(maps_of([dict.fromkeys(range(2), 1) if name == "length" else {} for name in NAMES]))
    state = attrs.evolve(forked().state, maps=version)
    assert state_to_json(state)["maps"]["length"] == [[0, 1], [1, 1]] != written["maps"]["length"]


def test_kin_in_a_circle_is_refused():
    value = state_to_json(forked().state)
    value["maps"]["members"][0][1][2] = [[0, 0], [0, 2]]
    with pytest.raises(LoadError, match="who lives has its place among its kin"):
        state_from_json(value)
